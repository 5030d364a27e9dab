"""The metrics over batches equal those of scikit-learn and scipy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn import metrics as theirs

from chimera.data.corpus.glue import SPECS
from chimera.task.glue_metrics import METRICS, Scores

ORACLES = {
    "accuracy": theirs.accuracy_score,
    "f1": theirs.f1_score,
    "mcc": theirs.matthews_corrcoef,
    "pearson": lambda y, p: stats.pearsonr(y, p)[0],
    "spearman": lambda y, p: stats.spearmanr(y, p)[0],
}


def scored(names: tuple[str, ...], classes: int, y: np.ndarray, p: np.ndarray) -> dict[str, float]:
    """Metrics over batches of 7, computed twice so that an incomplete reset shows."""
    scores = Scores(names, classes)
    for _ in range(2):
        for at in range(0, len(y), 7):
            targets, predicted = torch.from_numpy(y[at : at + 7]), torch.from_numpy(p[at : at + 7])
            scores.update(torch.tensor(float(at)), predicted, targets)
        found = scores.compute_and_reset()
    return found


def test_every_metric_of_every_task_has_an_oracle() -> None:
    assert {m for spec in SPECS.values() for m in spec.metrics} == set(METRICS) == set(ORACLES)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("seed", range(5))
def test_classification_metrics(classes: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    y, p = rng.integers(0, classes, 500), rng.integers(0, classes, 500)
    p = np.where(rng.random(500) < 0.4, y, p)
    names = ("accuracy", "mcc") if classes == 3 else ("accuracy", "mcc", "f1")
    found = scored(names, classes, y, p)
    for name in names:
        assert found[name] == pytest.approx(ORACLES[name](y, p), abs=1e-6)
    assert found["score"] == pytest.approx(np.mean([found[name] for name in names]))
    weights = [min(7, 500 - at) for at in range(0, 500, 7)]
    assert found["loss"] == pytest.approx(np.average(range(0, 500, 7), weights=weights))


@pytest.mark.parametrize("seed", range(5))
def test_regression_metrics(seed: int) -> None:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 26, 1379) / 5  # ties, as the benchmark has
    p = 100 + 1e-3 * (y + rng.normal(size=1379))  # far from zero: sums in float32 would lose it
    found = scored(("pearson", "spearman"), 0, y, p)
    for name in ("pearson", "spearman"):
        assert found[name] == pytest.approx(ORACLES[name](y, p), abs=1e-6)


@pytest.mark.parametrize(
    ("y", "p"), [([0, 1, 1, 1], [1, 1, 1, 1]), ([1, 1, 1], [0, 1, 1]), ([1, 1], [1, 1])]
)
def test_constant_predictions_or_labels_have_mcc_0(y: list[int], p: list[int]) -> None:
    found = scored(("mcc",), 2, np.array(y), np.array(p))
    assert found["mcc"] == theirs.matthews_corrcoef(y, p) == 0.0


def test_undefined_metrics_are_0() -> None:
    y = np.array([0, 1, 1, 0])
    assert scored(("mcc",), 2, y, np.ones(4, dtype=np.int64))["mcc"] == 0.0
    assert scored(("pearson",), 0, y.astype(float), np.full(4, 2.5))["score"] == 0.0
    assert Scores(("mcc",), 2).compute_and_reset() == {}


@pytest.mark.parametrize("constant", [0.1, 2.7001391546356766, 5.0])
def test_a_score_that_is_always_the_same_has_no_correlation(constant: float) -> None:
    scores = Scores(("pearson", "spearman"), 0)
    targets = torch.linspace(0, 5, 1500, dtype=torch.float64)
    for part in targets.split(700):
        scores.update(torch.zeros(()), torch.full_like(part, constant), part)
    found = scores.compute_and_reset()
    assert (found["pearson"], found["spearman"], found["score"]) == (0.0, 0.0, 0.0)
