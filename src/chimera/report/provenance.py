"""Say where a report's numbers come from: settings, code, machines, commands that repeat them."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Iterable
from typing import Any

from chimera.config import tables
from chimera.config.tables import ROW, Table
from chimera.dotted import flatten, get
from chimera.program import command_name
from chimera.report.formatting import code
from chimera.report.table_results import TableResults
from chimera.rundir.directory import RunDir, runs_of
from chimera.rundir.identity import NOT_IDENTITY
from chimera.rundir.records import Records, portable

#: Settings that every report shows, in this order.
SHOWN = (
    *("choices.task", "init_from", "model.name", "choices.data", "data.max_bytes"),
    *("choices.tokenizer", "tokenizer.vocab_size", "model.dim", "model.depth", "model.loops"),
    *("model.heads", "model.max_len", "data.batch_size", "trainer.accumulate_grad_batches"),
    *("trainer.max_steps", "optim.lr", "precision"),
)
#: Settings that name a run or a table; they always differ and are not compared.
NAMES = {"name", "seed", "choices.preset", "choices.scale", "table", *NOT_IDENTITY}


def shared_settings(results: TableResults) -> list[tuple[str, str, str]]:
    """(key, value here, value at scale=paper) of the settings in SHOWN; `by row` if rows differ."""
    paper = [config for config in results.at_paper_scale.values() if config]
    return [
        (
            _name(key),
            _common(get(cell.config, key) for cell in results.cells),
            _common(config.get(key) for config in paper),
        )
        for key in SHOWN
    ]


def not_the_papers(results: TableResults) -> str:
    """The settings of all runs that are others at scale=paper; empty if none is."""
    said = [
        f"{name} {here or 'none'} ({paper})"
        for name, here, paper in shared_settings(results)
        if paper and here != paper and "by row" not in (here, paper)
    ]
    return f"Settings, and in brackets those at scale=paper: {', '.join(said)}" if said else ""


def _common(values: Iterable[object]) -> str:
    texts = list(dict.fromkeys(map(_text, values)))
    return texts[0] if len(texts) == 1 else "by row" if texts else ""


def differing_settings(results: TableResults) -> tuple[list[str], list[list[str]]]:
    """Head and cells of a grid: keys that all rows have with different values, values by row."""
    configs = {line.name: flatten(line.cells[0].config) for line in results.trained}
    common = set.intersection(*map(set, configs.values())) if configs else set()
    keys = [
        key
        for key in sorted(common, key=lambda key: (not key.startswith("choices."), key))
        if _is_compared(key) and len({str(config[key]) for config in configs.values()}) > 1
    ]
    body = [[code(_name(key)), *(_text(of[key]) for of in configs.values())] for key in keys]
    return ["setting", *configs], body


def _is_compared(key: str) -> bool:
    *parents, last = key.split(".")
    if last in ("_target_", "_partial_") or key in NAMES:
        return False
    holders = {".".join(parents[: i + 1]) for i in range(len(parents))}
    return key.startswith("choices.") or holders.isdisjoint(NAMES)


def _text(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    return portable(
        "" if value is None else f"{value:g}" if isinstance(value, float) else f"{value}"
    )


def _name(key: str) -> str:
    return key.removeprefix("choices.")


def commit(environment: dict[str, Any], digits: int = 40) -> str:
    """Commit of a run's code, with a note if the checkout had uncommitted changes."""
    git = environment.get("git") or {}
    if not git.get("commit"):
        version = environment.get("chimera")
        return f"version {version}, not in git" if version else "not in git"
    return git["commit"][:digits] + (" with changes not committed" if git.get("changed") else "")


def machine(environment: dict[str, Any]) -> str:
    """Processor, cores, GPU, system, Python and torch of a run, on one line."""
    parts = (
        ("{}", environment.get("processor")),
        ("{} cores", environment.get("cpus")),
        ("{}", environment.get("gpu") or "no GPU"),
        ("{}", environment.get("machine")),
        ("Python {}", environment.get("python")),
        ("torch {}", environment.get("packages", {}).get("torch")),
    )
    return ", ".join(form.format(part) for form, part in parts if part)


def code_and_machines(results: TableResults) -> list[str]:
    """Commits and machines of the started runs, each with the number of its runs."""
    started = [cell.environment for cell in results.cells if cell.environment]
    return [
        f"{name} {description}: {n} runs"
        for name, describe in (("code", commit), ("machine", machine))
        for description, n in sorted(Counter(map(describe, started)).items())
    ]


def commands(results: TableResults) -> list[str]:
    """Command lines that repeat the table: its start models, its runs, its report.

    The environment variables that rows read are set before the commands, as they are now.
    """
    variables = [(name, os.environ.get(name, "")) for name in tables.variables(results.table)]
    set_before = "".join(f"{name}={shlex.quote(portable(at))} " for name, at in variables if at)
    own = (train_command(results), report_command(results))
    return [*start_commands(results), *(set_before + command for command in own)]


def train_command(results: TableResults) -> str:
    """Command line that trains the missing runs of the table."""
    table = results.table
    chosen = f"+{table.path}={_rows(table)}" if table.whole else f"+{table.paper}={table.name}"
    return _command("train", "-m", chosen, *results.overrides, _seeds(results))


def start_commands(results: TableResults) -> list[str]:
    """Command lines that trained the runs that rows start from, where `init_from=` names a run.

    A row that rows start from (`init_from=row:…`) is trained by the table's own command.
    """
    configs = [cell.config for cell in results.cells if cell.config.get("init_run")]
    started = {str(c["init_run"]) for c in configs if not str(c["init_from"]).startswith(ROW)}
    kept = Records()
    found = list[list[str]]()
    for digits in sorted(started):
        run = next(iter(runs_of(digits)), None)
        if run is not None and (overrides := RunDir(run).overrides()):
            found.append(overrides)
        elif (record := kept.get(digits)) is not None:  # the run is gone
            found.append(record.overrides)
    return [_command("train", *words) for words in found]


def report_command(results: TableResults) -> str:
    """Command line that writes the report of the finished runs."""
    table = results.table
    rows = [f"rows={_rows(table)}"] if table.whole else []
    return _command("report", table.path, *rows, *results.overrides, _seeds(results))


def _command(name: str, *words: str) -> str:
    return shlex.join((*command_name(name).split(), *map(portable, words)))


def _rows(table: Table) -> str:
    """The chosen rows, the reference first."""
    return ",".join(sorted((row.name for row in table.rows), key=lambda r: r != table.reference))


def _seeds(results: TableResults) -> str:
    return f"seed={','.join(map(str, results.seeds))}"
