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
from dataclasses import dataclass
from typing import Any

from chimera.report.stats import Spread, spread
from chimera.report.table_results import TableResults, metric

#: Keys of run.json with the metrics of predictions without a network, of runs that record them.
CONSTANT = "constant_prediction"
OVERLAP = "overlap_prediction"
#: Titles by name, in the order of the tables.
TITLES = {
    "unigram": "Unigram model, no network",
    "constant": "Constant prediction, no network",
    "overlap": "Tokens in common, no network",
    "guess": "Guess among the possible answers, no network",
    "base": "Start model, untouched",
}


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


def baselines(results: TableResults) -> list[Baseline]:
    """The trivial predictors that have a value of the table's metric."""
    records = [cell.record for cell in results.cells if cell.record]
    by_run = [_predictions(record, results.table.metric) for record in records]
    found = []
    for name, title in TITLES.items():
        if value := spread([v for run in by_run if (v := run[name]) is not None]):
            found.append(Baseline(name, title, value))
    return found


def below(baseline: Baseline, results: TableResults) -> list[str]:
    """Rows whose mean is not better than the baseline."""
    sign = 1.0 if results.table.better == "higher" else -1.0
    return [
        line.name
        for line in results.lines
        if line.ours is not None and sign * (line.ours.mean - baseline.value.mean) <= 0
    ]


def _predictions(record: dict[str, Any], key: str) -> dict[str, float | None]:
    """The value that each predictor has of a metric, by the record of a run."""
    perplexity = metric(record, "val/unigram_perplexity") or 0.0
    unigram = {"val/perplexity": perplexity, "val/loss": math.log(perplexity or 1.0)}
    group, _, name = key.partition("/")
    share = metric(record, "val/majority_accuracy")
    constant = share if name == "accuracy" else 0.0 if share and key == "val/mcc" else None
    return {
        "unigram": unigram.get(key) if perplexity > 0 else None,
        "constant": _recorded(record, CONSTANT, key) if record.get(CONSTANT) else constant,
        "overlap": _recorded(record, OVERLAP, key),
        "guess": metric(record, "val/chance_accuracy") if name == "accuracy" else None,
        "base": metric(record, f"{group}_base/{name}") if name else None,
    }


def _recorded(record: dict[str, Any], predictor: str, key: str) -> float | None:
    return metric({"metrics": record.get(predictor) or {}}, key)
