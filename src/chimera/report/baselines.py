"""Rows of trivial predictors: what a table's metric is without any model, on the same data.

    unigram     token frequencies of train (perplexity, and its logarithm as loss)
    constant    the most frequent class of train, or the mean score of train
    overlap     the tokens that the two texts of an example have in common
    base        the start model before training, where the task measures it
    guess       the answer drawn at random from those that the data allow

Their numbers are in the records of the runs; a record without one gives no row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from chimera.report.results import metric
from chimera.report.stats import Spread, spread
from chimera.report.summary import Summary

#: Keys of run.json with the metrics of predictions without a network, of runs that record them.
CONSTANT = "constant_prediction"
OVERLAP = "overlap_prediction"
Record = dict[str, Any]


@dataclass(frozen=True)
class Baseline:
    """A trivial predictor.

    Args:
        name, title: for the tables.
        value: mean and spread over the runs of the table; they differ where their data do.
    """

    name: str
    title: str
    value: Spread


def baselines(summary: Summary) -> list[Baseline]:
    """The trivial predictors that have a value of the table's metric."""
    found = []
    for name, (title, read) in PREDICTORS.items():
        by_run = (read(cell.record, summary.table.metric) for cell in summary.cells if cell.record)
        if value := spread([one for one in by_run if one is not None]):
            found.append(Baseline(name, title, value))
    return found


def below(baseline: Baseline, summary: Summary) -> list[str]:
    """Rows whose mean is not better than the baseline."""
    sign = 1.0 if summary.table.better == "higher" else -1.0
    return [
        line.name
        for line in summary.lines
        if line.ours is not None and sign * (line.ours.mean - baseline.value.mean) <= 0
    ]


def _unigram(record: Record, key: str) -> float | None:
    perplexity = metric(record, "val/unigram_perplexity")
    if perplexity is None or perplexity <= 0:
        return None
    return {"val/perplexity": perplexity, "val/loss": math.log(perplexity)}.get(key)


def _constant(record: Record, key: str) -> float | None:
    recorded = record.get(CONSTANT)
    if isinstance(recorded, Mapping) and recorded:
        return metric({"metrics": recorded}, key)
    share = metric(record, "val/majority_accuracy")
    if share is None:
        return None
    return share if key.endswith("/accuracy") else 0.0 if key == "val/mcc" else None


def _overlap(record: Record, key: str) -> float | None:
    recorded = record.get(OVERLAP)
    return metric({"metrics": recorded}, key) if isinstance(recorded, Mapping) else None


def _base(record: Record, key: str) -> float | None:
    group, slash, name = key.partition("/")
    return metric(record, f"{group}_base/{name}") if slash else None


def _guess(record: Record, key: str) -> float | None:
    return metric(record, "val/chance_accuracy") if key.endswith("/accuracy") else None


#: Title and value of each predictor, by its name; the value is of a record and a metric.
PREDICTORS: dict[str, tuple[str, Callable[[Record, str], float | None]]] = {
    "unigram": ("Unigram model, no network", _unigram),
    "constant": ("Constant prediction, no network", _constant),
    "overlap": ("Tokens in common, no network", _overlap),
    "guess": ("Guess among the possible answers, no network", _guess),
    "base": ("Start model, untouched", _base),
}
