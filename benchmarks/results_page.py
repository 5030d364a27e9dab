"""The generated parts of docs/results.md: what the committed reports say, and what was not run.

Every figure is computed here from `experiments/<paper>/<table>/results/<scale>/report.csv` and from
`benchmarks/results/not_run.json`; `python -m benchmarks.figures` writes them, and a test compares.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from benchmarks import not_run
from benchmarks.markdown import grid
from benchmarks.paired_ratio import by_seed
from chimera.config import row_learning_rates
from chimera.config.tables import Table, load, tables
from chimera.paths import EXPERIMENTS
from chimera.report import digits
from chimera.report.stats import Difference, corrected, paired

#: Scales of committed reports; the first that a table has is shown.
SCALES = ("paper", "medium", "small")
#: Tables whose rows are tasks of their own: no row is the best.
TASKS = ("bitnet_qdyt/glue", "saidl/tasks", "titan/spanish")


@dataclass(frozen=True)
class Report:
    """A committed report.

    Args:
        table: what it is of.
        scale: of its runs.
        rows: lines of report.csv.
        folder: where it lies.
    """

    table: Table
    scale: str
    rows: tuple[Mapping[str, str], ...]
    folder: Path

    @property
    def link(self) -> str:
        """Path of report.md from docs/."""
        return f"../experiments/{self.table.path}/results/{self.scale}/report.md"

    @property
    def own_rates(self) -> frozenset[str]:
        """Rows with a learning rate that was chosen for them on another seed."""
        chosen = {line.row for line in row_learning_rates.lines_at(self.table.path, self.scale)}
        return self.shown & chosen

    @property
    def shown(self) -> frozenset[str]:
        """Rows of the table that the report has: all, unless it was written with `rows=`."""
        return frozenset(row.name for row in self.table.rows) & {line["row"] for line in self.rows}

    @property
    def shown_rates(self) -> str:
        """How many of the rows that is; a dash where the metric is a speed: no rate changes it."""
        if "tokens_per_second" in self.table.metric:
            return "–"
        own, all_rows = len(self.own_rates), len(self.shown)
        if not own:
            return "one for all rows"
        return "each row's own" if own == all_rows else f"{own} of {all_rows} rows their own"

    def values(self, row: Mapping[str, str]) -> dict[int, float]:
        """Values of a row by seed."""
        return by_seed(row)

    @property
    def done(self) -> list[Mapping[str, str]]:
        """Rows with a result, best first."""
        sign = 1 if self.table.better == "lower" else -1
        found = [row for row in self.rows if row["values"]]
        return sorted(found, key=lambda row: sign * float(row["mean"]))


def report(path: str, folder: Path = EXPERIMENTS) -> Report | None:
    """The committed report of a table; None without one."""
    for scale in SCALES:
        file = folder / path / "results" / scale / "report.csv"
        if file.is_file():
            with file.open(encoding="utf-8", newline="") as opened:
                return Report(load(path), scale, tuple(csv.DictReader(opened)), file.parent)
    return None


def results() -> str:
    """A line for each table that has a report."""
    head = ["table", "scale, seeds, numerics", "learning rate", "best row", "reference"]
    head += ["difference", "the paper's order"]
    lines = [head, ["---"] * len(head)]
    for path in tables():
        found = report(path)
        if found and found.done:
            lines.append(_line(found))
    return grid(lines)


def _line(found: Report) -> list[str]:
    best = found.done[0]
    reference = next((r for r in found.done if r["row"] == found.table.reference), None)
    seeds = max((len(found.values(row)) for row in found.done), default=0)
    compared, difference = "", ""
    if reference is best:
        compared = "the best row"
    elif reference is not None:
        compared = f"`{reference['row']}` {_value(found, reference)}"
        others = [found.values(row) for row in found.done if row is not reference]
        # The best row is the first of those that are done.
        gap, *_ = corrected([paired(values, found.values(reference)) for values in others])
        difference = _difference(gap) if gap else ""
    rows, shown_rows = len(found.table.rows), len(found.shown)
    part = "" if shown_rows == rows else f", {shown_rows} of its {rows} rows"
    shown = f"`{best['row']}` {_value(found, best)}" + ("" if best["published"] else " (ours)")
    about = [
        f"[{found.table.title}]({found.link}), {found.table.metric}{part}",
        f"{found.scale}, {seeds}, {best.get('numerics', '1')}",
        found.shown_rates,
    ]
    if found.table.path in TASKS:
        return [
            *about,
            "; ".join(f"`{r['row']}` {_value(found, r)}" for r in found.done),
            "",
            "",
            "",
        ]
    return [
        *about,
        shown,
        compared,
        difference,
        order(found),
    ]


def order(found: Report) -> str:
    """How many pairs of rows that the paper ranks have its order here."""
    sign = -1.0 if found.table.better == "lower" else 1.0
    tested: list[Difference | None] = []
    for a, b in combinations([row for row in found.done if row["published"]], 2):
        gap = sign * (float(a["published"]) - float(b["published"]))
        first, second = (a, b) if gap > 0 else (b, a)
        better = {seed: sign * value for seed, value in found.values(first).items()}
        worse = {seed: sign * value for seed, value in found.values(second).items()}
        if gap:
            tested.append(paired(better, worse))
    counts = found.table.counts
    pairs = [pair for pair in corrected(tested, test=not counts) if pair is not None]
    if not pairs:
        return "no pair of rows is ranked"
    agree = [pair for pair in pairs if pair.mean > 0]
    against = [pair for pair in pairs if pair.mean <= 0]
    shown = f"{len(agree)} of {len(pairs)} pairs"
    if counts or all(pair.equal for pair in pairs):  # or one seed
        return shown
    firm = [sum(pair.significant for pair in part) for part in (agree, against)]
    return f"{shown} ({firm[0]} significantly); {len(against)} against it ({firm[1]} significantly)"


def _value(found: Report, row: Mapping[str, str]) -> str:
    return digits.values(found.values(row).values())


def _difference(gap: Difference) -> str:
    if gap.p is None or gap.equal:
        return digits.spread(gap, sign=True)
    return f"{digits.spread(gap, sign=True)}, {digits.p_equals(gap)}"


def missing() -> str:
    """A line for each table without a complete report at the scale of the estimates."""
    lines = [["table", "runs", "hours", "command"], ["---", "---:", "---:", "---"]]
    costs, total = not_run.known(), 0.0
    for path in sorted(
        tables(), key=lambda path: (_seconds(costs.get(path, {})) or math.inf, path)
    ):
        if _complete(path, not_run.SCALE):
            continue
        cost = costs.get(path, {})
        total += _seconds(cost)
        hours = f"{_seconds(cost) / 3600:.1f}" if cost.get("seconds") else "not estimated"
        shown = [f"`{path}`", str(cost.get("runs", "")), cost.get("why") or hours]
        lines.append([*shown, f"`{not_run.command(path)}`"])
    text = grid(lines)
    if total:
        machine = json.loads(not_run.RESULTS.read_text(encoding="utf-8"))["machine"]
        text += (
            f"\nTogether {total / 3600:.0f} hours, {not_run.WORKERS} runs at a time, on"
            f" {machine['processor']} ({machine['cpus']} cores).\n"
        )
    return text


def _seconds(cost: Mapping[str, float]) -> float:
    return float(cost.get("seconds") or 0.0)


def _complete(path: str, scale: str) -> bool:
    file = EXPERIMENTS / path / "results" / scale / "report.csv"
    if not file.is_file():
        return False
    with file.open(encoding="utf-8", newline="") as opened:
        lines = list(csv.DictReader(opened))
    states = {state for line in lines for state in line["state"].split(";")}
    shown = {line["row"] for line in lines}
    return states <= {"done", "baseline"} and {row.name for row in load(path).rows} <= shown
