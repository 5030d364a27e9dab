"""Run the rows of a table at three equalities: steps, FLOPs, seconds.

    python -m benchmarks equal table=saidl/attention scale=small flops=1e13 seconds=60
    python -m benchmarks equal table=saidl/attention scale=small flops=1e13 seed=0,1,2 run=true

The rows of a table take the same number of steps, with about as many parameters. A row at a budget
of FLOPs or seconds is a run of its own: its number of steps follows from what a step costs, and its
schedule ends there. FLOPs are those of matrix products. Seconds are those of training steps, as
measured on this machine anew or in a finished run of the same shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from chimera.config.arguments import read
from chimera.config.compose import compose, plain
from chimera.config.roots import roots
from chimera.config.tables import Table, jobs, load
from chimera.errors import UserError
from chimera.report.budget import budget as draw
from chimera.report.budget import known, tokens_per_step
from chimera.report.cells import numerics
from chimera.report.stats import corrected, paired
from chimera.report.summary import Line, Summary, summarise
from chimera.rundir.index import RunIndex
from chimera.types import NonNegativeInt, PositiveFloat

USAGE = (
    "python -m benchmarks equal table=<paper>/<table> [scale=small] [flops=1e13] [seconds=60]"
    " [seed=0,1,2] [run=true] [key=value …]"
)
Equality = Literal["steps", "FLOPs", "seconds"]


@dataclass(frozen=True)
class Options:
    """What to compare.

    Args:
        table: its name.
        flops, seconds: budgets of each row's training; an equality without a budget is left out.
        seed: seeds of the runs.
        run: train what is missing; without it the command lines are printed.
        measure: seconds of real steps by which the speed of a row is measured.
    """

    table: str
    flops: PositiveFloat | None = None
    seconds: PositiveFloat | None = None
    seed: list[NonNegativeInt] = field(default_factory=lambda: [0])
    run: bool = False
    measure: PositiveFloat = 5.0


@dataclass(frozen=True)
class Cost:
    """What a step of a row takes: FLOPs and seconds; None if it is not known."""

    flops: float | None
    seconds: float | None


def main(words: Sequence[str] = ()) -> dict[str, Any]:
    """Print steps and results of each row at each equality; no results file is written.

    Raises:
        UserError: an unknown table or key, or no budget.
    """
    if not words:
        print(f"equal needs a table and a budget: {USAGE}")
        return {}
    overrides: list[str] = []
    options = read(Options, words, USAGE, unread=overrides)
    if options.flops is None and options.seconds is None:
        raise UserError("equal needs a budget of each row: flops=1e13, seconds=60 or both")
    table = load(options.table)
    by_row = costs(table, overrides, options)
    plans = {
        equality: {row: steps_at(equality, cost, options) for row, cost in by_row.items()}
        for equality in ("steps", "FLOPs", "seconds")
        if equality == "steps" or getattr(options, equality.lower()) is not None
    }
    lines = [
        command(table, row, overrides, steps)
        for plan in plans.values()
        for row, steps in plan.items()
        if steps != 0
    ]
    if options.run:
        for line in lines:
            for seed in options.seed:
                train(line, seed)
    else:
        seeds = ",".join(map(str, options.seed))
        print("\n".join(f"python train.py {' '.join(line)} seed={seeds}" for line in lines))
    for equality, plan in plans.items():
        report(table, equality, plan, overrides, options)
    return {}


def costs(table: Table, overrides: Sequence[str], options: Options) -> dict[str, Cost]:
    """What a step of each row costs."""
    from chimera.sweep.estimate import Estimator
    from chimera.sweep.plan import plan
    from chimera.train.overview import overview

    planned = plan([job.overrides for job in jobs(table, list(overrides), options.seed[:1])])
    seconds = options.measure if options.seconds is not None else 0.0
    estimator = Estimator(seconds=seconds, limit=seconds * 20 * len(planned), say=print)
    found = {}
    for job, estimate in zip(planned, estimator.all(planned), strict=True):
        tokens, flops = tokens_per_step(job.config), overview(job.config)["flops"]
        speed = estimate.tokens_per_second
        if speed is None and (record := job.directory.record()):  # the run is finished
            speed = record.get("tokens_per_second")
        row = str(job.config["table"]["row"])
        found[row] = Cost(
            flops["training"] * tokens if flops else None, tokens / speed if speed else None
        )
    return found


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


def train(words: Sequence[str], seed: int) -> None:
    """Train a row unless its run is done or stored."""
    from chimera.api import runs

    if not record_of([*words, f"seed={seed}"]):
        runs.train(*words, f"seed={seed}")


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
    cells = [cell for line in lines for cell in line.cells]
    return Summary(table, list(overrides), seeds, numerics(cells), tuple(lines), ())


def report(
    table: Table,
    equality: str,
    plan: dict[str, int | None],
    overrides: Sequence[str],
    options: Options,
) -> None:
    """Print the table at one equality; write it as Markdown, with loss against FLOPs and time."""
    from rich.console import Console

    from chimera.report import notes, text
    from chimera.report.canvas import save
    from chimera.report.write import report_folder, show
    from chimera.rundir.atomic import make_folder, write_atomic

    summary = summary_at(table, plan, overrides, options.seed)
    budget = {"FLOPs": options.flops, "seconds": options.seconds}.get(equality)
    title = f"Equal {equality}" if budget is None else f"Equal {equality}: {budget:g} a row"
    print(title)
    show(summary, Console())
    if not any(line.values for line in summary.lines):
        return
    folder = report_folder(summary) / "equal"
    make_folder(folder, of=folder, key="table")
    name = equality.lower()
    steps = [
        [row, "as configured" if n is None else "cost not known" if n == 0 else str(n)]
        for row, n in plan.items()
    ]
    parts = [f"# {table.title}: {title[0].lower()}{title[1:]}", text.table(summary)]
    parts += [notes.statistics(summary), notes.beaten(summary), text.grid(["row", "steps"], steps)]
    if known(summary):
        save(draw(summary), folder / f"{name}.png")
        parts.append(f"![loss against FLOPs and time]({name}.png)")
    write_atomic(folder / f"{name}.md", "\n\n".join(filter(None, parts)) + "\n")
    print(folder / f"{name}.md")


def record_of(words: Sequence[str]) -> dict[str, Any]:
    """Record of a finished run; empty without one."""
    index = RunIndex(roots())
    config, digits = index.config(list(words), lambda texts: plain(compose(texts)))
    return index.result(config, digits).record()
