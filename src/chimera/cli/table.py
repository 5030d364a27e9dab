"""Commands on the finished runs of a table: `report`, `rates`, `dashboard`.

    chimera report saidl/attention scale=medium seed=0,1,2
    chimera rates saidl/hybrids scale=medium rates=1e-3,2e-3,4e-3 seed=100,101
    chimera dashboard saidl/attention scale=medium

`rates` chooses the learning rate of each row on seeds of their own. It writes
experiments/<table>.rates.csv, from which training and reports take the rate of each row at that
scale (`config/tables.py`). On the first seed a row needs the rates next to its best
one; on every other seed the two best of the first, and the mean decides. If a run is missing, the
command that trains it is named and nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from chimera.cli.command import command
from chimera.config.tables import RATES, Table, Tried, best_rates, load, tables, tried
from chimera.errors import UserError, library
from chimera.paths import EXPERIMENTS
from chimera.safe_io import locked, write_atomic
from chimera.types import NonNegativeInt, PositiveFloat

WORDS = "<paper>/<table> [group=choice …] [key=value …]"


@dataclass(frozen=True)
class Runs:
    """The runs of a table, besides the overrides of its jobs.

    Args:
        seed: seeds of the runs, such as 0,1,2.
        rows: which of the table's rows; none: all. Without its reference, the first one is compared
            with.
    """

    seed: list[NonNegativeInt] = field(default_factory=lambda: [0])
    rows: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Report(Runs):
    """Options besides the table and the overrides of its jobs.

    Args:
        seed: seeds of the runs, such as 0,1,2.
        rows: which of the table's rows; none: all. Without its reference, the first one is compared
            with.
        out: folder for the files; default reports/<paper>/<table>/<scale>.
        forms: of the figures.
    """

    out: Path | None = None
    forms: list[Literal["png", "svg", "pdf"]] = field(default_factory=lambda: ["png", "svg", "pdf"])


@dataclass(frozen=True)
class Rates(Runs):
    """Of what the rate is chosen.

    Args:
        scale: of the runs.
        rates: that each row tries.
        seed: seeds of the runs that choose; reports have others.
        rows: for which; none: all. What is known of others stays.
    """

    seed: list[NonNegativeInt] = field(default_factory=lambda: [100])
    scale: str = field(kw_only=True)
    rates: list[PositiveFloat] = field(default_factory=lambda: [1e-3, 2e-3, 4e-3])


def chosen(options: Runs, words: list[str]) -> tuple[Table, list[str], list[int]]:
    """The table, the overrides of its jobs, the seeds without duplicates.

    Raises:
        UserError: no table or several tables are named, it does not exist or has no such row, no
            seed is named, or a word is for training only.
    """
    names = [word for word in words if "=" not in word]
    if len(names) != 1:
        named = f"{len(names)} tables are named" if names else "no table is named"
        raise UserError(f"{named}; name one of {', '.join(tables())}")
    if not options.seed:
        raise UserError("seed= is empty; name one or more seeds, as in seed=0,1,2")
    for word in words:
        if word.partition("=")[0] in ("overwrite", "extend", "run_dir"):
            raise UserError(
                f"{word} is for training, and a report reads runs; leave it out"
                " (files of an earlier report are replaced)"
            )
    overrides = [word for word in words if "=" in word]
    return load(names[0]).only(options.rows), overrides, list(dict.fromkeys(options.seed))


@command("report", Report, WORDS, overrides=True)
def report(options: Report, words: list[str]) -> int:
    """Write the report's files, print the table and the folder."""
    table, overrides, seeds = chosen(options, words)
    from chimera.report.write import report_folder, show, write

    results = write(table, overrides, seeds, options.out, forms=options.forms)
    show(results, options.out or report_folder(results))
    return 0


@command("dashboard", Runs, WORDS, overrides=True)
def dashboard(options: Runs, words: list[str]) -> int:
    """Save a W&B workspace and report of the table."""
    table, overrides, seeds = chosen(options, words)  # a mistake is told before W&B is imported
    save = library("chimera.report.dashboard", "dashboard", "dashboard").save
    from chimera.report.table_results import read_results

    save(read_results(table, overrides, seeds))
    return 0


@command("rates", Rates, WORDS, overrides=True)
def rates(options: Rates, words: list[str]) -> int:
    """Write the table's rates and print them."""
    table, overrides, seeds = chosen(options, words)
    if len(options.rates) < 2:
        raise UserError("rates= has a single rate, so there is nothing to choose; name several")
    import pandas as pd

    lines = _tried(table, [f"scale={options.scale}", *overrides], sorted({*options.rates}), seeds)
    new = {(options.scale, line.row) for line in lines}
    order = [row.name for row in (table.whole or table).rows]
    file = EXPERIMENTS / f"{table.path}{RATES}"
    with locked(file.parent):
        old = [line for line in tried(table.path) if line.scale != options.scale or options.rows]
        every = [*(line for line in old if (line.scale, line.row) not in new), *lines]
        every.sort(key=lambda line: (line.scale, order.index(line.row), line.rate, line.seed))
        frame = pd.DataFrame(every, dtype=object)
        write_atomic(file, frame.to_csv(index=False, lineterminator="\n"))
    for row, rate in best_rates(lines, table.better).items():
        of_row = sorted((line for line in lines if line.row == row), key=lambda line: line.rate)
        end = " (at an end of the tried rates)" * (rate in (of_row[0].rate, of_row[-1].rate))
        values = ", ".join(f"{line.rate:g}: {_value(line)}" for line in of_row)
        print(f"{row}: {rate:g}{end}; {table.metric} by rate {values}")
    print(file)
    return 0


def _value(line: Tried) -> str:
    return "not finite" if line.value is None else f"{line.value:.4g}"


def _tried(
    table: Table, words: list[str], rates: Sequence[float], seeds: Sequence[int]
) -> list[Tried]:
    """What the runs of all rows, rates and seeds reached.

    Args:
        table: of the rows.
        words: overrides of all runs, the scale first.
        rates: in ascending order.
        seeds: of the runs.

    Raises:
        UserError: a run is missing that would decide.
    """
    from chimera.report.table_results import cells

    scale = words[0].partition("=")[2]
    lines: list[Tried] = []
    for seed in seeds:
        for rate in rates:
            for cell in cells(table, [*words, f"optim.lr={rate:g}"], [seed], {}):
                if cell.state in ("done", "failed"):
                    steps = int(cell.config["trainer"]["max_steps"])
                    lines.append(Tried(scale, cell.row, rate, seed, cell.value, steps))
        if absent := list(_absent(lines, table, rates, seeds[0], seed)):
            rows = ",".join(dict.fromkeys(row for row, _ in absent))
            named = ",".join(f"{rate:g}" for rate in sorted({rate for _, rate in absent}))
            raise UserError(
                f"{table.path} has no finished run of {rows} with optim.lr={named}, beside the best"
                f" rates; this trains what is missing: python train.py -m +{table.path}={rows}"
                f" {' '.join(words)} optim.lr={named} seed={seed} workers=2"
            )
    return lines


def _absent(
    lines: Sequence[Tried], table: Table, rates: Sequence[float], first: int, seed: int
) -> Iterator[tuple[str, float]]:
    """Row and rate of each run of a seed that would decide and is not there."""
    sign = 1 if table.better == "lower" else -1
    for row in (row.name for row in table.rows):
        of_row = [line for line in lines if line.row == row]
        values = [(x.value, x.rate) for x in of_row if x.seed == first]
        ranked = [rate for _, rate in sorted((sign * v, r) for v, r in values if v is not None)]
        needed = list(rates)
        if seed != first:
            needed = ranked[:2]
        elif ranked:
            at = needed.index(ranked[0])
            needed = needed[max(0, at - 1) : at + 2]
        there = {line.rate for line in of_row if line.seed == seed}
        yield from ((row, rate) for rate in needed if rate not in there)
