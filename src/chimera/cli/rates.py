"""Choose the learning rate of each row of a table from finished runs, on seeds of their own.

    chimera rates saidl/attention scale=medium
    chimera rates saidl/hybrids scale=medium rates=1e-3,2e-3,4e-3 seed=100,101

Writes experiments/<table>.rates.csv, from which training and reports take the rate of each row at
that scale (`config/tables.py`). On the first seed a row needs the rates next to its
best one; on every other seed the two best of the first, and the mean decides. If a run is missing,
the command that trains it is named and nothing is written.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields

from chimera.cli.command import command
from chimera.config.tables import RATES, Table, Tried, best_rates, load, tables, tried
from chimera.errors import UserError
from chimera.paths import EXPERIMENTS
from chimera.safe_io import write_atomic
from chimera.types import NonNegativeInt, PositiveFloat

WORDS = "<paper>/<table> [group=choice …] [key=value …]"


@dataclass(frozen=True)
class Options:
    """Of what the rate is chosen.

    Args:
        scale: of the runs.
        rates: that each row tries.
        seed: seeds of the runs that choose; reports have others.
        rows: for which; none: all. What is known of others stays.
    """

    scale: str
    rates: list[PositiveFloat] = field(default_factory=lambda: [1e-3, 2e-3, 4e-3])
    seed: list[NonNegativeInt] = field(default_factory=lambda: [100])
    rows: list[str] = field(default_factory=list)


@command("rates", Options, WORDS, overrides=True)
def main(options: Options, words: list[str]) -> int:
    """Write the table's rates and print them."""
    names = [word for word in words if "=" not in word]
    if len(names) != 1:
        raise UserError(f"name one table of {', '.join(tables())}")
    if len(options.rates) < 2:
        raise UserError("rates= has a single rate, so there is nothing to choose; name several")
    table = load(names[0])
    overrides = [word for word in words if "=" in word]
    lines = _lines(table.only(options.rows), options, overrides)
    chosen = {line.row for line in lines}
    kept = [
        line
        for line in tried(table.path)
        if line.scale != options.scale or (options.rows and line.row not in chosen)
    ]
    order = {row.name: i for i, row in enumerate(table.rows)}
    all_lines = sorted(
        [*kept, *lines],
        key=lambda line: (line.scale, order.get(line.row, len(order)), line.rate, line.seed),
    )
    file = EXPERIMENTS / f"{table.path}{RATES}"
    write_atomic(file, _csv(all_lines))
    rates = best_rates(lines, table.better)
    for row, rate in rates.items():
        of_row = sorted((line for line in lines if line.row == row), key=lambda line: line.rate)
        end = " (at an end of the tried rates)" * (rate in (of_row[0].rate, of_row[-1].rate))
        values = ", ".join(f"{line.rate:g}: {_shown(line.value)}" for line in of_row)
        print(f"{row}: {rate:g}{end}; {table.metric} by rate {values}")
    print(file)
    return 0


def _shown(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4g}"


def _lines(table: Table, options: Options, overrides: Sequence[str]) -> list[Tried]:
    """What the runs of all rows, rates and seeds reached.

    Raises:
        UserError: a run is missing that would decide.
    """
    from chimera.report.table_results import cells

    lines: list[Tried] = []
    for seed in dict.fromkeys(options.seed):
        for rate in sorted(options.rates):
            words = [f"scale={options.scale}", *overrides, f"optim.lr={rate:g}"]
            for cell in cells(table, words, [seed], {}):
                if cell.state in ("done", "failed"):
                    steps = int(cell.config["trainer"]["max_steps"])
                    lines.append(Tried(options.scale, cell.row, rate, seed, cell.value, steps))
        if absent := list(_absent(lines, table, options, seed)):
            rows = ",".join(dict.fromkeys(row for row, _ in absent))
            rates = ",".join(f"{rate:g}" for rate in sorted({rate for _, rate in absent}))
            words = [f"scale={options.scale}", *overrides]
            raise UserError(
                f"{table.path} has no finished run of {rows} with optim.lr={rates}, beside the best"
                f" rates; this trains what is missing: python train.py -m +{table.path}={rows}"
                f" {' '.join(words)} optim.lr={rates} seed={seed} workers=2"
            )
    return lines


def _absent(
    lines: Sequence[Tried], table: Table, options: Options, seed: int
) -> Iterator[tuple[str, float]]:
    """Row and rate of each run of a seed that would decide and is not there."""
    sign = 1 if table.better == "lower" else -1
    for row in (row.name for row in table.rows):
        first = [line for line in lines if (line.row, line.seed) == (row, options.seed[0])]
        ranked = sorted((sign * line.value, line.rate) for line in first if line.value is not None)
        if seed != options.seed[0]:
            needed = [rate for _, rate in ranked[:2]]
        elif ranked:
            known = sorted({*options.rates, ranked[0][1]})
            at = known.index(ranked[0][1])
            needed = known[max(0, at - 1) : at + 2]
        else:
            needed = sorted(options.rates)
        there = {line.rate for line in lines if (line.row, line.seed) == (row, seed)}
        yield from ((row, rate) for rate in needed if rate not in there)


def _csv(lines: Sequence[Tried]) -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(each.name for each in fields(Tried))
    for line in lines:
        value = "" if line.value is None else repr(line.value)
        words = line.scale, line.row, f"{line.rate:g}", line.seed, value
        writer.writerow([*words, "" if line.steps is None else line.steps])
    return file.getvalue()
