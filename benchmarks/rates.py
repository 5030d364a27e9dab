"""Choose the learning rate of each row of a table, on seeds that its report does not have.

    python -m benchmarks rates table=saidl/attention scale=medium
    python -m benchmarks rates table=saidl/hybrids scale=medium rates=1e-3,2e-3,4e-3 seed=100,101

Reads the finished runs of every row and writes experiments/<table>.rates.csv, from which `train`
and `report` take the rate of each row at that scale. On the first seed a row needs the rates next
to its best one, and none further away; on every other seed the two best of the first, whose means
decide. What is missing is named with the command that trains it; then nothing is written.
"""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks import not_run
from benchmarks.markdown import grid
from chimera.config.arguments import read
from chimera.config.row_learning_rates import COLUMNS, SUFFIX, Tried, best, lines_at, tried
from chimera.config.tables import Table, load, tables
from chimera.errors import UserError
from chimera.paths import EXPERIMENTS
from chimera.report.cells import cells
from chimera.rundir.safe_io import write_atomic
from chimera.types import NonNegativeInt, PositiveFloat

USAGE = (
    "python -m benchmarks rates table=<paper>/<table> scale=<scale> [rates=1e-3,2e-3,4e-3]"
    " [seed=100,101] [rows=<row>,<row>] [key=value …]"
)


@dataclass(frozen=True)
class Options:
    """Of what the rate is chosen.

    Args:
        table: its name.
        scale: at which.
        rates: that each row tries.
        seed: seeds of the runs that choose; reports have others.
        rows: for which; none: for all. What is known of others stays.
    """

    table: str
    scale: str
    rates: list[PositiveFloat] = field(default_factory=lambda: [1e-3, 2e-3, 4e-3])
    seed: list[NonNegativeInt] = field(default_factory=lambda: [100])
    rows: list[str] = field(default_factory=list)


def main(words: Sequence[str] = ()) -> dict[str, Any]:
    """Write the table's rates and print them; no results file is written.

    Raises:
        UserError: an unknown table or key, or a run that is missing.
    """
    if not words:
        print(f"rates needs a table and a scale: {USAGE}")
        return {}
    overrides: list[str] = []
    options = read(Options, words, USAGE, unread=overrides)
    table = load(options.table)
    if len(options.rates) < 2:
        raise UserError("rates= has a single rate, so there is nothing to choose; name several")
    order = {row.name: i for i, row in enumerate(table.rows)}
    lines = _tried(table.only(options.rows), options, overrides)
    chosen = {line.row for line in lines}
    kept = [
        line
        for line in tried(table.path)
        if line.scale != options.scale or (options.rows and line.row not in chosen)
    ]
    last = len(order)  # a row that the table does not have any more
    lines.sort(key=lambda line: (order[line.row], line.rate, line.seed))
    all_lines = [*kept, *lines]
    all_lines.sort(key=lambda line: (line.scale, order.get(line.row, last), line.rate, line.seed))
    file = EXPERIMENTS / f"{table.path}{SUFFIX}"
    write_atomic(file, _text(all_lines))
    print(listing(table, lines))
    print(file)
    return {}


def chosen_rates() -> str:
    """docs/results.md: what each row of the language models' tables reached at each rate."""
    said = []
    for path in tables():
        table = load(path)
        lines = lines_at(path, not_run.SCALE)
        if lines and table.metric in ("val/perplexity", "val/loss"):
            seeds = ", ".join(map(str, sorted({line.seed for line in lines})))
            head = (
                f"`{path}`, {table.metric}, seed {seeds}; the rate of the bold value is the row's:"
            )
            said.append(f"{head}\n\n{listing(table, lines)}")
    return "\n\n".join(said) + "\n"


def listing(table: Table, lines: Sequence[Tried]) -> str:
    """A Markdown table of what each rate reached, seed by seed; the chosen rate's is bold.

    Args:
        table: whose rows they are.
        lines: of one scale.
    """
    rates = sorted({line.rate for line in lines})
    values = defaultdict[tuple[str, float], list[str]](list)
    for line in lines:
        values[line.row, line.rate].append(_shown(line.value))
    shown = {tried: ", ".join(found) for tried, found in values.items()}
    chosen = best(list(lines), table.better)
    head = ["row", *(f"{rate:g}" for rate in rates)]
    body = [
        [
            row,
            *(
                f"**{shown[row, rate]}**" if rate == chosen.get(row) else shown.get((row, rate), "")
                for rate in rates
            ),
        ]
        for row in dict.fromkeys(line.row for line in lines)
    ]
    at_end = [row for row, rate in chosen.items() if rate in (rates[0], rates[-1])]
    said = f"\nAt an end of the tried rates: {', '.join(at_end)}." if at_end else ""
    return (grid([head, ["---"] * len(head), *body]) + said).rstrip()


def _shown(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4g}"


def _tried(table: Table, options: Options, overrides: Sequence[str]) -> list[Tried]:
    """Values of all rows at the rates that were tried.

    Raises:
        UserError: runs are missing that would decide.
    """
    first, *others = dict.fromkeys(options.seed)
    lines, absent = _at(table, options, overrides, first)
    found = best(lines, table.better)
    needed = [pair for pair in absent if _decides(pair[1], found.get(pair[0]), options.rates)]
    _refuse(needed, table, options, overrides, first)
    deciding = {(row, rate) for row in found for rate in _two_best(lines, row, table)}
    for seed in others:
        more, absent = _at(table, options, overrides, seed)
        _refuse([pair for pair in absent if pair in deciding], table, options, overrides, seed)
        lines += more
    return lines


def _at(
    table: Table, options: Options, overrides: Sequence[str], seed: int
) -> tuple[list[Tried], list[tuple[str, float]]]:
    """Lines of the finished runs of a seed, and the row and rate of each run that is missing."""
    lines, absent = [], []
    for rate in sorted(options.rates):
        words = [f"scale={options.scale}", *overrides, f"optim.lr={rate:g}"]
        for cell in cells(table, words, [seed], {}):
            if cell.state in ("done", "failed"):
                steps = int(cell.config["trainer"]["max_steps"])
                lines.append(Tried(options.scale, cell.row, rate, seed, cell.value, steps))
            else:
                absent.append((cell.row, rate))
    return lines, absent


def _two_best(lines: Sequence[Tried], row: str, table: Table) -> list[float]:
    """The best rates of a row on the first seed."""
    left = [line for line in lines if line.row == row]
    chosen: list[float] = []
    while len(chosen) < 2 and (rate := best(left, table.better).get(row)) is not None:
        chosen.append(rate)
        left = [line for line in left if line.rate != rate]
    return chosen


def _refuse(
    needed: Sequence[tuple[str, float]],
    table: Table,
    options: Options,
    overrides: Sequence[str],
    seed: int,
) -> None:
    """Name runs that are missing, and the command that trains them."""
    if not needed:
        return
    rows = ",".join(dict.fromkeys(row for row, _ in needed))
    rates = ",".join(dict.fromkeys(f"{rate:g}" for _, rate in needed))
    more = " ".join([f"scale={options.scale}", *overrides])
    raise UserError(
        f"{table.path} has no finished run of {rows} with optim.lr={rates}, beside the best rates;"
        f" this trains what is missing: python train.py -m +{table.path}={rows} {more}"
        f" optim.lr={rates} seed={seed} workers=2"
    )


def _decides(rate: float, best: float | None, rates: Sequence[float]) -> bool:
    """Whether no other rate lies between an untried rate and a row's best, or it has none."""
    return best is None or not any(min(rate, best) < r < max(rate, best) for r in rates)


def _text(lines: Sequence[Tried]) -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    for line in lines:
        value = "" if line.value is None else repr(line.value)
        words = line.scale, line.row, f"{line.rate:g}", line.seed, value
        writer.writerow([*words, "" if line.steps is None else line.steps])
    return file.getvalue()
