"""A table's rows at equal steps, FLOPs and seconds, from kept runs of each row at several lengths.

The rows of a table take the same number of steps, which cost different amounts. A row at a budget
of FLOPs or seconds is a run of its own: its number of steps follows from what a step costs, and its
learning-rate schedule ends there. FLOPs are those of matrix products. Seconds are those of training
steps without validations, of one seed's runs on one machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from statistics import fmean

from evidence import Ratio, Report, Seeds, at_own_rate, by_row, ratio, report, runs, table

from chimera.config.tables import chosen_rate
from chimera.report import formatting

#: By table: steps of the report, seed of the runs whose time counts, budgets of FLOPs and seconds
#: (full attention's and TITAN's), and the seeds that all rows have.
TABLES = {
    "saidl/attention": (1000, 100, 4.393e12, 51.44, range(3)),
    "saidl/hybrids": (3000, 101, 1.31743e13, 170.55, range(5)),
    "titan/ablations_first": (1000, 100, 2.40463e13, 352.76, range(3)),
    "titan/baselines": (1000, 300, 2.40463e13, 351.2, range(3)),
}


@dataclass(frozen=True)
class Budgets:
    """A table's rows at equal steps, FLOPs and seconds.

    Args:
        of: the table's report: the rows at its own steps.
        seeds: that are compared.
        costs: FLOPs and seconds of a training step, by row.
        steps: that a budget pays for, by equality and row.
        values: by equality, row and seed.
    """

    of: Report
    seeds: range
    costs: Mapping[str, Mapping[str, float]]
    steps: Mapping[str, Mapping[str, int]]
    values: Mapping[str, Mapping[str, Seeds]]

    def ratio(self, equality: str, row: str, than: str) -> Ratio | None:
        """Of two rows at an equality."""
        return ratio(self.values[equality][row], self.values[equality][than])

    def table(self) -> str:
        """All rows at all equalities, as Markdown; a cell with fewer seeds than others says so."""
        lines = []
        for row, cost in self.costs.items():
            line = {"row": f"`{row}`", "FLOPs a step": formatting.count(cost["FLOPs"])}
            line["ms a step"] = f"{1e3 * cost['seconds']:.0f}"
            line[f"at {self.steps['steps'][row]} steps"] = self._shown("steps", row)
            for equality in cost:
                line["steps" + " " * len(line)] = str(self.steps[equality][row])
                line[f"at equal {equality}"] = self._shown(equality, row)
            lines.append(line)
        return table(lines)

    def order(self) -> str:
        """Rows in the order of their means over the seeds that all have, at each equality."""
        said = []
        for equality, rows in self.values.items():
            common = sorted(set.intersection(*(set(values) for values in rows.values())))
            means = {row: fmean(values[seed] for seed in common) for row, values in rows.items()}
            ranked = ", ".join(f"`{row}`" for row in sorted(means, key=means.__getitem__))
            said.append(f"{equality}{self._few(len(common))}: {ranked}")
        return f"Best first, by the means. Equal {'; equal '.join(said)}."

    def _shown(self, equality: str, row: str) -> str:
        values = self.values[equality][row]
        return formatting.values(values.values()) + self._few(len(values))

    def _few(self, seeds: int) -> str:
        return f" ({seeds} seeds)" * (seeds < len(self.seeds))


@cache
def budgets(path: str) -> Budgets:
    """Of one of `TABLES`."""
    number, timed, flops, seconds, seeds = TABLES[path]
    of, kept = report(path), runs(path, choices__scale="medium")
    assert of is not None
    quiet = kept[(kept["trainer.max_steps"] == number) & (kept["seed"] == timed)]
    measured = of.rows.index.intersection(quiet["row"])
    names = [row.name for row in of.table.rows if row.name in measured]
    own = quiet["row"].map({row: chosen_rate(path, row, of.scale) for row in names})
    quiet = quiet[quiet["optim.lr"].astype(float) == own.astype(float)]
    length = "data.seq_len" if "data.seq_len" in quiet else "model.max_len"
    tokens = quiet.groupby("row")[["data.batch_size", length]].first().astype(float).prod(axis=1)
    speed = quiet.groupby("row")["tokens_per_second"].median()
    costs = {
        row: {"FLOPs": of.rows["flops"][row] * tokens[row], "seconds": tokens[row] / speed[row]}
        for row in names
    }
    steps = {"steps": dict.fromkeys(names, number)}
    values = {"steps": {row: of.values(row) for row in names}}
    for equality, budget in (("FLOPs", flops), ("seconds", seconds)):
        paid = {row: max(1, round(budget / costs[row][equality])) for row in names}
        steps[equality] = paid
        found = kept[kept["trainer.max_steps"] == kept["row"].map(paid)]
        by_equality = by_row(at_own_rate(found, path), of.table.metric)
        values[equality] = {
            row: of.values(row) if paid[row] == number else by_equality.get(row, {})
            for row in names
        }
    for rows in values.values():
        for row, found in rows.items():
            rows[row] = {seed: value for seed, value in found.items() if seed in seeds}
    return Budgets(of, seeds, costs, steps, values)
