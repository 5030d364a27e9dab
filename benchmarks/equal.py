"""Run the rows of a table at three equalities: steps, FLOPs, seconds.

    python -m benchmarks equal table=saidl/attention scale=small flops=1e13 seconds=60
    python -m benchmarks equal table=saidl/attention scale=small flops=1e13 seed=0,1,2 run=true

The rows of a table take the same number of steps, with about as many parameters. A row at a budget
of FLOPs or seconds is a run of its own: its number of steps follows from what a step costs, and its
schedule ends there. FLOPs are those of matrix products. Seconds are those of training steps of
the row's finished runs at the table's own steps; `run=true` trains these runs first.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

from benchmarks.equal_page import At, Cost, Equality, write
from chimera.config.arguments import read
from chimera.config.compose import compose, plain
from chimera.config.config_folders import roots
from chimera.config.tables import Table, load
from chimera.errors import UserError
from chimera.report.cells import Cell, cells
from chimera.report.curves import tokens_per_step
from chimera.report.stats import corrected, paired
from chimera.report.summary import Line, Summary, summarise
from chimera.rundir.identity import NUMERICS
from chimera.rundir.index import RunIndex
from chimera.types import NonNegativeInt, PositiveFloat

USAGE = (
    "python -m benchmarks equal table=<paper>/<table> [scale=small] [flops=1e13] [seconds=60]"
    " [seed=0,1,2] [run=true] [timed=100] [out=<folder>] [key=value …]"
)


@dataclass(frozen=True)
class Options:
    """What to compare.

    Args:
        table: its name.
        flops, seconds: budgets of each row's training; an equality without a budget is left out.
        seed: seeds of the runs.
        run: train what is missing; without it the command lines are printed.
        timed: seeds of the finished runs whose time counts, if not `seed`: runs of one quiet day.
        out: folder for the files; default reports/<paper>/<table>/<scale>/equal.
    """

    table: str
    flops: PositiveFloat | None = None
    seconds: PositiveFloat | None = None
    seed: list[NonNegativeInt] = field(default_factory=lambda: [0])
    run: bool = False
    timed: list[NonNegativeInt] = field(default_factory=list)
    out: Path | None = None


def main(words: Sequence[str] = ()) -> dict[str, Any]:
    """Print steps and results of each row at each equality, and write equal.md.

    Raises:
        UserError: an unknown table or key, or no budget.
    """
    if not words:
        print(f"equal needs a table and a budget: {USAGE}")
        return {}
    from rich.console import Console

    from chimera.report.write import report_folder, show

    overrides: list[str] = []
    options = read(Options, words, USAGE, unread=overrides)
    if options.flops is None and options.seconds is None:
        raise UserError("equal needs a budget of each row: flops=1e13, seconds=60 or both")
    table = load(options.table)
    if options.run:  # first those whose times the seconds are scheduled by
        train([command(table, row.name, overrides, None) for row in table.rows], options.seed)
    by_row = costs(table, overrides, options)
    plans: dict[Equality, dict[str, int | None]] = {
        equality: {row: steps_at(equality, cost, options) for row, cost in by_row.items()}
        for equality in get_args(Equality)
        if equality == "steps" or getattr(options, equality.lower()) is not None
    }
    lines = [
        command(table, row, overrides, steps)
        for plan in plans.values()
        for row, steps in plan.items()
        if steps != 0
    ]
    if options.run:
        train(lines, options.seed)
    else:
        seeds = ",".join(map(str, options.seed))
        print("\n".join(f"python train.py {' '.join(line)} seed={seeds}" for line in lines))
    budgets = {"FLOPs": options.flops, "seconds": options.seconds}
    found = [
        At(equality, budgets.get(equality), plan, summary_at(table, plan, overrides, options.seed))
        for equality, plan in plans.items()
    ]
    for at in found:
        print(at.title)
        show(at.summary, Console())
    if any(line.values for at in found for line in at.summary.lines):
        folder = options.out or report_folder(found[0].summary) / "equal"
        write(found, by_row, reproduce(table, overrides, options), folder, options.timed)
        print(folder / "equal.md")
    return {}


def costs(table: Table, overrides: Sequence[str], options: Options) -> dict[str, Cost]:
    """What a step of each row costs."""
    from chimera.train.model_summary import overview

    seeds = options.timed or options.seed
    timed: dict[str, list[Cell]] = {}
    for cell in cells(table, list(overrides), seeds, {}):
        timed.setdefault(cell.row, []).append(cell)
    found = {}
    for row, runs in timed.items():
        tokens, flops = tokens_per_step(runs[0].config), overview(runs[0].config)["flops"]
        speeds = [value for run in runs if (value := speed(run))]
        machines = {str(run.computed_on) for run in runs if speed(run)}
        found[row] = Cost(
            flops["training"] * tokens if flops else None,
            tokens / statistics.median(speeds) if speeds else None,
            ", ".join(sorted(machines)),
        )
    return found


def speed(cell: Cell) -> float | None:
    """Tokens a second of a finished run."""
    return cell.fact("tokens_per_second") if cell.state == "done" else None


def steps_at(equality: Equality, cost: Cost, options: Options) -> int | None:
    """Steps of a row: None for those of its configuration, 0 if its cost is not known."""
    if equality == "steps":
        return None
    step = cost.flops if equality == "FLOPs" else cost.seconds
    budget = options.flops if equality == "FLOPs" else options.seconds
    assert budget is not None
    return max(1, round(budget / step)) if step else 0


def command(table: Table, row: str, overrides: Sequence[str], steps: int | None) -> list[str]:
    """Words of the command line of a row."""
    words = [f"+{table.path}={row}", *overrides]
    return words if steps is None else [*words, f"trainer.max_steps={steps}"]


def train(lines: Sequence[Sequence[str]], seeds: Sequence[int]) -> None:
    """Train rows by their command lines, unless their runs are done or stored."""
    from chimera.api import runs

    for words in lines:
        for seed in seeds:
            if not record_of([*words, f"seed={seed}"]):
                runs.fit(*words, f"seed={seed}")


def summary_at(
    table: Table, plan: dict[str, int | None], overrides: Sequence[str], seeds: list[int]
) -> Summary:
    """The table with each row's runs at its own number of steps."""
    lines: list[Line] = []
    for row in table.rows:
        steps = plan[row.name]
        words = [*overrides] if steps is None else [*overrides, f"trainer.max_steps={steps}"]
        alone = replace(table, rows=(row,), reference="")
        lines += summarise(alone, words, seeds).lines if steps != 0 else ()
    no_values: dict[int, float] = {}
    reference = next((line.values for line in lines if line.name == table.reference), no_values)
    tested = corrected(
        [None if line.name == table.reference else paired(line.values, reference) for line in lines]
    )
    lines = [replace(line, difference=d) for line, d in zip(lines, tested, strict=True)]
    return Summary(table, list(overrides), seeds, NUMERICS, tuple(lines), ())


def record_of(words: Sequence[str]) -> dict[str, Any]:
    """Record of a finished run; empty without one."""
    index = RunIndex(roots())
    config, digits = index.config(list(words), lambda texts: plain(compose(texts)))
    directory = index.directory(config, digits)
    kept = index.record(config, digits, directory)
    return kept.result if kept else directory.record()


def reproduce(table: Table, overrides: Sequence[str], options: Options) -> str:
    """The command that writes the page from the same runs."""
    budgets = {"flops": options.flops, "seconds": options.seconds}
    words = [f"{key}={value:g}" for key, value in budgets.items() if value is not None]
    words.append(f"seed={','.join(map(str, options.seed))}")
    if options.timed:
        words.append(f"timed={','.join(map(str, options.timed))}")
    return " ".join([f"python -m benchmarks equal table={table.path}", *overrides, *words])
