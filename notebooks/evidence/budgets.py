"""A table's rows at equal steps, FLOPs and seconds, from kept runs of each row at several lengths.

The rows of a table take the same number of steps, which cost different amounts. A row at a budget
of FLOPs or seconds is a run of its own: its number of steps follows from what a step costs, and its
learning-rate schedule ends there. FLOPs are those of matrix products. Seconds are those of training
steps without validations, of one seed's runs on one machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from statistics import fmean

import pandas as pd
from evidence import Ratio, Report, at_own_rate, by_seed, ratio, report, runs, table

from chimera.config import row_learning_rates as rates
from chimera.report import formatting

#: By table: steps of the report, seed of the runs whose time counts, budgets of FLOPs and seconds
#: (full attention's and TITAN's), and the seeds that all rows have.
TABLES = {
    "saidl/attention": (1000, 100, 4.393e12, 51.44, range(3)),
    "saidl/hybrids": (3000, 101, 1.31743e13, 170.55, range(5)),
    "titan/ablations": (1000, 100, 2.40463e13, 352.76, range(3)),
    "titan/baselines": (1000, 300, 2.40463e13, 351.2, range(3)),
}


@dataclass(frozen=True)
class Budgets:
    """A table's rows at equal steps, FLOPs and seconds.

    Args:
        of: the table's report: the rows at its own steps.
        steps: of the report's runs.
        costs: FLOPs and seconds of a training step, by row.
        budget: what each row may take, by equality.
        seeds: that are compared.
    """

    of: Report
    steps: int
    costs: dict[str, dict[str, float]]
    budget: dict[str, float]
    seeds: range

    def steps_at(self, equality: str, row: str) -> int:
        """Steps that a row's budget pays for."""
        if equality == "steps":
            return self.steps
        return max(1, round(self.budget[equality] / self.costs[row][equality]))

    def values(self, equality: str, row: str) -> dict[int, float]:
        """Values of a row by seed."""
        path, scale, steps = self.of.table.path, self.of.scale, self.steps_at(equality, row)
        if steps == self.steps:
            values = self.of.values(row)
        else:
            found = runs(path, choices__scale=scale, trainer__max_steps=steps, row=row)
            values = by_seed(at_own_rate(found, path), self.of.table.metric)
        return {seed: value for seed, value in values.items() if seed in self.seeds}

    def ratio(self, equality: str, row: str, than: str) -> Ratio | None:
        """Of two rows at an equality."""
        return ratio(self.values(equality, row), self.values(equality, than))

    def table(self) -> str:
        """All rows at all equalities, as Markdown; a cell with fewer seeds than others says so."""
        head = ["row", "FLOPs a step", "ms a step", f"at {self.steps} steps"]
        rows = []
        for row, cost in self.costs.items():
            cells = [self._shown("steps", row)]
            for equality in self.budget:
                cells += [f"{self.steps_at(equality, row)}", self._shown(equality, row)]
            step = formatting.count(cost["FLOPs"]), f"{1e3 * cost['seconds']:.0f}"
            rows.append([f"`{row}`", *step, *cells])
        head += [name for equality in self.budget for name in ("steps", f"at equal {equality}")]
        return table(head, rows)

    def order(self) -> str:
        """Rows in the order of their means over the seeds that all have, at each equality."""
        said = []
        for equality in ("steps", *self.budget):
            rows = {row: self.values(equality, row) for row in self.costs}
            common = sorted(set.intersection(*(set(values) for values in rows.values())))
            means = {row: fmean(values[seed] for seed in common) for row, values in rows.items()}
            few = f" ({len(common)} seeds)" * (len(common) < len(self.seeds))
            said.append(
                f"{equality}{few}: "
                + ", ".join(f"`{r}`" for r in sorted(means, key=means.__getitem__))
            )
        return f"Best first, by the means. Equal {'; equal '.join(said)}."

    def _shown(self, equality: str, row: str) -> str:
        values = self.values(equality, row)
        few = f" ({len(values)} seeds)" * (len(values) < len(self.seeds))
        return formatting.values(values.values()) + few


@cache
def budgets(path: str) -> Budgets:
    """Of one of `TABLES`."""
    steps, timed, flops, seconds, seeds = TABLES[path]
    of, kept = (
        report(path),
        runs(path, choices__scale="medium", trainer__max_steps=steps, seed=timed),
    )
    assert of is not None
    costs = {}
    for row in of.table.rows:
        if row.name in of.rows.index:
            quiet = kept[kept["row"] == row.name]
            quiet = quiet[quiet["optim.lr"].astype(float) == rates.chosen(path, row.name, of.scale)]
            tokens = float(quiet["data.batch_size"].iloc[0]) * _length(quiet)
            costs[row.name] = {
                "FLOPs": of.rows["flops"][row.name] * tokens,
                "seconds": tokens / quiet["tokens_per_second"].median(),
            }
    return Budgets(of, steps, costs, {"FLOPs": flops, "seconds": seconds}, seeds)


def _length(found: pd.DataFrame) -> float:
    """Tokens of a sequence of these runs."""
    column = "data.seq_len" if "data.seq_len" in found else "model.max_len"
    return float(found[column].iloc[0])
