"""What was to be trained, and the fits of what was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from benchmarks.effect.fit import Cell, Fit
from benchmarks.effect.pairs import Pairs, pairs
from benchmarks.effect.runs import Measured
from chimera.errors import UserError


@dataclass(frozen=True)
class Plan:
    """What was to be trained.

    Args:
        command: that writes the page.
        mixer: of all runs.
        factors: levels of norm, quantiser and feed-forward layer; costs are relative to the first.
        cells: combinations of them that are trained.
        squares: of which the cells are.
    """

    command: str
    mixer: str
    factors: tuple[tuple[str, ...], ...]
    cells: list[Cell]
    squares: int

    @property
    def all(self) -> list[Cell]:
        """All combinations, trained or not."""
        return list(product(*self.factors))


@dataclass(frozen=True)
class Task:
    """Runs of a task, their fit and the pairs that deviate from it."""

    runs: Measured
    fit: Fit
    pairs: Pairs


def analyse(plan: Plan, runs: Sequence[Measured]) -> tuple[list[Task], list[str]]:
    """Fit every task; the second list says which cannot be fitted, and why."""
    tasks, without = [], []
    for one in runs:
        try:
            fit = Fit(one.responses, plan.factors)
        except UserError as error:
            without.append(f"{one.task}: {error}")
            continue
        tasks.append(Task(one, fit, pairs(fit)))
    return tasks, without
