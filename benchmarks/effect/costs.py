"""What the levels of a factor cost, relative to its first level, from the records of the runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.effect.fit import Fit
from benchmarks.effect.plan import Plan, Task
from benchmarks.effect.runs import FACTORS, Measured
from chimera.errors import UserError
from chimera.report.escape import code
from chimera.report.text import grid


def about(tasks: Sequence[Task]) -> str:
    """How to read the tables."""
    reference = tasks[-1].runs.task
    return (
        "Each number is relative to the first level of its factor, by the same least squares on"
        f" logarithms. Parameters and stored bytes are those of the models of {reference}; ternary"
        " weights are stored packed, all others as in training (so `int8` and the four-bit formats"
        " count as float32 here). Time is that of a training step as the runs recorded it, on"
        " machines that did other work beside."
    )


def table(plan: Plan, tasks: Sequence[Task], factor: int) -> str:
    """Costs of the levels of a factor."""
    last = tasks[-1].runs
    measures: list[tuple[str, Measured, Callable[[Mapping[str, Any]], float]]] = [
        ("parameters", last, lambda record: record["parameters"]["total"]),
        ("stored bytes", last, lambda record: record["bytes"]["total"]["packed"]),
        *((f"time, {task.runs.task}", task.runs, _step) for task in tasks),
    ]
    ratios = [cost(plan, runs, measure, factor) for _, runs, measure in measures]
    body = [
        [code(level), *(f"{r[level]:.2f} ×" if level in r else "–" for r in ratios)]
        for level in plan.factors[factor]
    ]
    return grid([FACTORS[factor], *(title for title, *_ in measures)], body)


def _step(record: Mapping[str, Any]) -> float:
    return 1 / float(record["tokens_per_second"])


def cost(
    plan: Plan, runs: Measured, measure: Callable[[Mapping[str, Any]], float], factor: int
) -> dict[str, float]:
    """A cost by level of a factor, relative to its first level; empty where it is not recorded."""
    try:
        logs = {
            cell: {0: statistics.fmean(math.log(measure(record)) for record in records)}
            for cell, records in runs.records.items()
        }
        found = Fit(logs, plan.factors).effects[factor]
    except (KeyError, TypeError, ValueError, ZeroDivisionError, UserError):
        return {}
    first = found.get(plan.factors[factor][0])
    if first is None:
        return {}
    return {level: math.exp(effect.value - first.value) for level, effect in found.items()}
