"""The page of `benchmarks.equal`: a table's rows at equal steps, FLOPs and seconds.

equal.md   the table of all equalities, then each with its differences and its picture
equal.csv  a line for each equality and row, in full precision; docs/results.md is written from it
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from benchmarks.markdown import table as markdown_table
from benchmarks.paired_ratio import Ratio, by_seed, ratio
from chimera.config.tables import load
from chimera.paths import EXPERIMENTS
from chimera.report import digits, notes, text
from chimera.report.curves import budget as draw
from chimera.report.curves import costs_known as known
from chimera.report.stats import spread
from chimera.report.style import save
from chimera.report.summary import Summary
from chimera.rundir.safe_io import make_folder, write_atomic

Equality = Literal["steps", "FLOPs", "seconds"]
COLUMNS = ("equality", "row", "steps", "flops_per_step", "seconds_per_step", "seeds", "values")


@dataclass(frozen=True)
class Cost:
    """What a step of a row takes: FLOPs and seconds; None if it is not known.

    Args:
        flops: of matrix products in training.
        seconds: without validations.
        machine: GPU or processor of the seconds.
    """

    flops: float | None
    seconds: float | None
    machine: str = ""


@dataclass(frozen=True)
class At:
    """The rows at one equality.

    Args:
        equality: what is equal.
        budget: of each row, in FLOPs or seconds; None for steps.
        steps: by row; None: those of the configuration, 0: the cost of a step is not known.
        summary: of the runs.
    """

    equality: Equality
    budget: float | None
    steps: Mapping[str, int | None]
    summary: Summary

    @property
    def title(self) -> str:
        """Heading."""
        more = "" if self.budget is None else f": {self.budget:g} a row"
        return f"Equal {self.equality}{more}"


def write(
    found: Sequence[At],
    costs: Mapping[str, Cost],
    command: str,
    folder: Path,
    timed: Sequence[int] = (),
) -> None:
    """Write equal.md, equal.csv and a picture for each budget.

    Args:
        found: the equalities; the first is that of steps.
        costs: of a step, by row.
        command: that writes the page again.
        folder: of the files.
        timed: seeds of the runs whose time counts; empty: those of the summaries.
    """
    make_folder(folder, of=folder, key="out")
    table = found[0].summary.table
    machines = sorted({cost.machine for cost in costs.values() if cost.machine})
    seeds = f" of seed {', '.join(map(str, timed))}" if timed else ""
    lines = list(_lines(found, costs))
    write_atomic(folder / "equal.csv", _csv(lines))
    parts = [
        f"# {table.title} at equal {named([at.equality for at in found])}",
        f"Written by `{command}` from finished runs. A row at a budget is a run of its own, whose"
        " schedule ends there. FLOPs are those of matrix products in training. A step takes the"
        f" median time of the row's runs at the table's own steps{seeds}, validations left out"
        f" ({', '.join(machines)}).",
        text.grid(*together(lines)),
    ]
    for at in found:
        parts += [f"## {at.title}", text.table(at.summary), notes.statistics(at.summary)]
        parts += [notes.processors(at.summary), notes.beaten(at.summary)]
        if at.equality != "steps" and known(at.summary):  # that of steps is the report's budget.png
            name = f"{at.equality.lower()}.png"
            save(draw(at.summary), folder / name, ("png",))
            parts.append(f"![loss against FLOPs and time]({name})")
    write_atomic(folder / "equal.md", "\n\n".join(filter(None, parts)) + "\n")


def named(parts: Sequence[str]) -> str:
    """`a, b and c`."""
    *first, last = parts
    return f"{', '.join(first)} and {last}" if first else last


def together(lines: Sequence[Mapping[str, str]]) -> tuple[list[str], list[list[str]]]:
    """Head and cells of the table of all equalities; a cell of fewer seeds than others says so.

    Args:
        lines: of equal.csv.
    """
    head, body = ["row", "FLOPs a step", "ms a step"], dict[str, list[str]]()
    for equality in dict.fromkeys(line["equality"] for line in lines):
        head += ["at its steps"] if equality == "steps" else ["steps", f"at equal {equality}"]
    most = _most(lines)
    for line in lines:
        flops, seconds = line["flops_per_step"], line["seconds_per_step"]
        start = [
            line["row"],
            digits.count(float(flops)) if flops else "",
            f"{1e3 * float(seconds):.0f}" if seconds else "",
        ]
        cells = body.setdefault(line["row"], start)
        if line["equality"] != "steps":
            cells.append(line["steps"] or "cost not known")
        values = spread(list(by_seed(line).values()))
        shown = digits.spread(values) if values else "missing" if line["steps"] else ""
        few = f" ({digits.seeds(values.n)})" if values and values.n < most else ""
        cells.append(shown + few)
    return head, list(body.values())


def equalities(folder: Path = EXPERIMENTS) -> str:
    """docs/results.md: the committed tables at equal steps, FLOPs and seconds."""
    parts = []
    for file in sorted(folder.glob("*/*/results/*/equal/equal.csv")):
        table, scale = load("/".join(file.parts[-6:-4])), file.parts[-3]
        lines = read(file)
        head, body = together(lines)
        link = f"../experiments/{table.path}/results/{scale}/equal/equal.md"
        parts.append(
            f"[{table.title}]({link}), {table.metric} at `{scale}`.\n\n"
            + markdown_table(head, body)
            + f"\n{ranked(lines, table.better)}\n"
        )
    return "\n".join(parts)


def ranked(lines: Sequence[Mapping[str, str]], better: str) -> str:
    """Rows in the order of their means over the seeds that all of them have, at each equality.

    Args:
        lines: of equal.csv.
        better: whether a lower or a higher value is better.
    """
    sign, found = 1 if better == "lower" else -1, list[str]()
    most = _most(lines)
    for equality in dict.fromkeys(line["equality"] for line in lines):
        rows = {line["row"]: by_seed(line) for line in lines if line["equality"] == equality}
        rows = {row: values for row, values in rows.items() if values}
        common = set[int]().union(*rows.values()).intersection(*rows.values())
        if not common:
            continue
        means = {row: sign * sum(values[seed] for seed in common) for row, values in rows.items()}
        order = ", ".join(f"`{row}`" for row in sorted(means, key=lambda row: means[row]))
        few = f" ({digits.seeds(len(common))})" if len(common) < most else ""
        found.append(f"{equality}{few}: {order}")
    return f"By their means, the best first. Equal {'; equal '.join(found)}." if found else ""


def read(file: Path) -> list[dict[str, str]]:
    """Lines of an equal.csv."""
    with file.open(encoding="utf-8", newline="") as opened:
        return list(csv.DictReader(opened))


def at_equal(folder: Path, equality: Equality, row: str, than: str) -> Ratio | None:
    """The ratio of two rows' perplexities at an equality; None if it has not both.

    Args:
        folder: of a report, with its page of equalities or without.
        equality: at which.
        row, than: names of rows.
    """
    file = folder / "equal" / "equal.csv"
    lines = read(file) if file.exists() else []
    values = {line["row"]: by_seed(line) for line in lines if line["equality"] == equality}
    return ratio(values.get(row, {}), values.get(than, {}))


def _most(lines: Sequence[Mapping[str, str]]) -> int:
    """Seeds of the line that has most."""
    return max((len(by_seed(line)) for line in lines), default=0)


def _lines(found: Sequence[At], costs: Mapping[str, Cost]) -> list[dict[str, str]]:
    lines = []
    for at in found:
        values = {line.name: line.values for line in at.summary.lines}
        for row, cost in costs.items():
            runs, steps = values.get(row, {}), at.steps[row]
            cells = (
                *(at.equality, row, "configured" if steps is None else str(steps or "")),
                *("" if value is None else repr(value) for value in (cost.flops, cost.seconds)),
                *(";".join(map(str, runs)), ";".join(map(repr, runs.values()))),
            )
            lines.append(dict(zip(COLUMNS, cells, strict=True)))
    return lines


def _csv(lines: Sequence[Mapping[str, str]]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return out.getvalue()
