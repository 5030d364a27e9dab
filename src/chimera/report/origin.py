"""Describe the origin of a report's runs: commits, machines, and the commands that repeat them."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from chimera.config import tables
from chimera.config.tables import ROW, Table
from chimera.program import spelt
from chimera.report.cells import Cell
from chimera.report.summary import Summary
from chimera.rundir.directory import runs_of
from chimera.rundir.portable import portable
from chimera.rundir.records import Records


def commit(environment: dict[str, Any], digits: int = 40) -> str:
    """Commit of a run's code, with a note if the checkout had uncommitted changes."""
    git = environment.get("git") or {}
    if not git.get("commit"):
        version = environment.get("chimera")
        return f"version {version}, not in git" if version else "not in git"
    return git["commit"][:digits] + (" with changes not committed" if git.get("changed") else "")


def machine(environment: dict[str, Any]) -> str:
    """Processor, cores, GPU, system, Python and torch of a run, on one line."""
    parts = [
        environment.get("processor"),
        f"{environment['cpus']} cores" if environment.get("cpus") else None,
        environment.get("gpu") or "no GPU",
        environment.get("machine"),
        f"Python {environment['python']}" if environment.get("python") else None,
        f"torch {environment['packages']['torch']}"
        if "torch" in environment.get("packages", {})
        else None,
    ]
    return ", ".join(part for part in parts if part)


def counted(
    runs: Iterable[Cell], describe: Callable[[dict[str, Any]], str]
) -> list[tuple[str, int]]:
    """Count the started runs by the description of their environment, sorted by description."""
    return sorted(Counter(describe(run.environment) for run in runs if run.environment).items())


def commands(summary: Summary) -> list[str]:
    """Command lines that repeat the table: its start models, its runs, its report.

    The environment variables that rows read are set before the commands, as they are now.
    """
    variables = [(name, os.environ.get(name, "")) for name in tables.variables(summary.table)]
    set_before = "".join(f"{name}={shlex.quote(portable(at))} " for name, at in variables if at)
    own = (train_command(summary), report_command(summary))
    return [*start_commands(summary), *(set_before + command for command in own)]


def train_command(summary: Summary) -> str:
    """Command line that trains the missing runs of the table."""
    table = summary.table
    chosen = f"+{table.paper}={table.name}"
    if table.whole:
        chosen = f"+{table.path}={_rows(table)}"
    words = (*spelt("train").split(), "-m", chosen, *map(portable, summary.overrides))
    return shlex.join((*words, _seeds(summary)))


def start_commands(summary: Summary) -> list[str]:
    """Command lines that trained the runs that rows start from, where `init_from=` names a run.

    A row that rows start from (`init_from=row:…`) is trained by the table's own command.
    """
    configs = [cell.config for cell in summary.cells if cell.config.get("init_run")]
    started = {str(c["init_run"]) for c in configs if not str(c["init_from"]).startswith(ROW)}
    kept, found = Records(), list[list[str]]()
    for digits in sorted(started):
        file = next((run / "overrides.txt" for run in runs_of(digits)), None)
        if file is not None and file.is_file():
            found.append(file.read_text("utf-8").splitlines())
        elif (record := kept.get(digits)) is not None:  # the run is gone
            found.append(record.overrides)
    return [shlex.join((*spelt("train").split(), *map(portable, words))) for words in found]


def report_command(summary: Summary) -> str:
    """Command line that writes the report of the finished runs."""
    command = [*spelt("report").split(), summary.table.path]
    if summary.table.whole:
        command.append(f"rows={_rows(summary.table)}")
    return shlex.join((*command, *map(portable, summary.overrides), _seeds(summary)))


def _rows(table: Table) -> str:
    """The chosen rows, the reference first."""
    return ",".join(sorted((row.name for row in table.rows), key=lambda r: r != table.reference))


def _seeds(summary: Summary) -> str:
    return f"seed={','.join(map(str, summary.seeds))}"
