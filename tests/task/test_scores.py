"""Metrics equal those of scikit-learn and scipy; what stands beside a model is scored as one."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from sklearn import metrics as theirs

from chimera.config.settings import Optim
from chimera.contract_tests import zoo
from chimera.data.batch.labelled import LabelledDataModule
from chimera.data.corpus.glue import SPECS, Glue
from chimera.data.encode.examples import Encoded, class_counts, frame
from chimera.data.tokenizer.base import Template
from chimera.data.tokenizer.word import Words
from chimera.task.glue_metrics import METRICS, Scores
from chimera.task.sequence_classification import SequenceClassification, Shares, predictor, shares
from tests.data.glue import cola, mnli, stsb
from tests.task.kit import SHAPE, classification

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


def made(name: str, folder: Path) -> tuple[SequenceClassification, LabelledDataModule]:
    corpus = Glue(task=name, path=str(folder / "glue"), batch_size=4, cache_dir=str(folder))
    data = LabelledDataModule(corpus, Words())
    vocab = data.prepared.tokenizer.vocab_size
    model = zoo.model(SHAPE, causal=False, vocab_size=vocab, position="rope")
    task = SequenceClassification(model, Optim(lr=1e-3), 3, vocab)
    task.configure_for(data, "fit")
    return task, data


def labels(data: LabelledDataModule, split: str) -> dict[str, np.ndarray]:
    return {name: part.labels for name, part in data.parts(split).items()}  # type: ignore[arg-type]


def test_the_most_frequent_class_of_train_in_each_part(tmp_path: Path) -> None:
    task, data = cast(Any, classification(tmp_path, 3))
    task.configure_for(data, "fit")
    found = task.constant_prediction(data, None)
    train = np.concatenate(list(labels(data, "train").values())).astype(int)
    majority = np.bincount(train).argmax()
    shares = {n: float((part == majority).mean()) for n, part in labels(data, "valid").items()}
    assert len(shares) == 2
    assert 0 < min(shares.values()) < 1
    assert found["val/score"] == pytest.approx(np.mean(list(shares.values())))
    accuracies = sorted(v for k, v in found.items() if "accuracy" in k)
    assert accuracies == pytest.approx(sorted(shares.values()))
    assert task.constant_prediction(data, None) == found  # nothing is left in the metrics
    assert not [key for key in found if "loss" in key]


def test_mcc_and_a_correlation_with_a_constant_are_0(tmp_path: Path) -> None:
    cola(tmp_path / "glue")
    stsb(tmp_path / "glue")
    task, data = made("cola", tmp_path)
    (valid,) = labels(data, "valid").values()
    found = task.constant_prediction(data, None)
    assert (found["val/mcc"], found["val/score"]) == (0.0, 0.0)
    majority = np.bincount(np.concatenate(list(labels(data, "train").values())).astype(int))
    expected = theirs.accuracy_score(valid, np.full(len(valid), majority.argmax()))
    assert found["val/accuracy"] == pytest.approx(expected)
    task, data = made("stsb", tmp_path)
    found = task.constant_prediction(data, None)
    assert found == {"val/pearson": 0.0, "val/spearman": 0.0, "val/score": 0.0}


def test_the_batches_of_a_limited_validation(tmp_path: Path) -> None:
    """What stands beside a model is of the same examples; those without a label do not count."""
    task, data = cast(Any, classification(tmp_path, 3))
    task.configure_for(data, "fit")
    majority = int(class_counts(data.prepared.splits["train"], task.classes).argmax())
    first, second = data.parts("valid").values()
    batches = len(first) // 4 + 1  # of 4: all of the first part, and some of the second
    first.labels[2] = np.nan
    read = second.labels[: 4 * batches - len(first)]
    assert 0 < len(read) < len(second)
    found = task.constant_prediction(data, batches)
    values = sorted(value for key, value in found.items() if "accuracy" in key)
    known = first.labels[~np.isnan(first.labels)]
    assert values == pytest.approx(sorted([(known == majority).mean(), (read == majority).mean()]))
    some = first.labels[:8]
    expected = (some[~np.isnan(some)] == majority).mean()
    assert task.baselines(data, 2) == {"val/majority_accuracy": pytest.approx(expected)}


TEMPLATES = [Template((1,), (2,), (2,)), Template((1,), (2, 2), (2,)), Template((), (2,), ())]
TEXT = st.lists(st.integers(3, 9), max_size=6)
PAIRS = st.lists(st.tuples(TEXT, TEXT, st.integers(0, 2)), min_size=1, max_size=12)


def encoded(pairs: list[tuple[list[int], list[int] | None, int]], template: Template) -> Encoded:
    framed = [
        frame(np.array(a, np.int64), None if b is None else np.array(b, np.int64), template, 40)
        for a, b, _ in pairs
    ]
    return Encoded(
        np.concatenate([row for row, _ in framed]),
        np.cumsum([len(row) for row, _ in framed]),
        np.array([second for _, second in framed]),
        np.array([float(label) for *_, label in pairs]),
        np.arange(len(pairs)),
    )


@given(PAIRS, st.sampled_from(TEMPLATES))
def test_the_share_is_of_the_texts_alone(
    pairs: list[tuple[list[int], list[int], int]], template: Template
) -> None:
    found = shares(encoded(list(pairs), template), template)
    if not template.end and any(not b for _, b, _ in pairs):
        assert found is None  # without an end an empty second text leaves no trace
    else:
        ids = [(set(a) & set(b), set(a) | set(b)) for a, b, _ in pairs]
        assert shown(found) == [len(both) / max(1, len(either)) for both, either in ids]


@given(PAIRS, PAIRS)
def test_no_threshold_is_right_more_often_on_train(
    train: list[tuple[list[int], list[int], int]], valid: list[tuple[list[int], list[int], int]]
) -> None:
    template = TEMPLATES[0]
    of_train, of_valid = (encoded(list(rows), template) for rows in (train, valid))
    values, classes = np.array(shown(shares(of_train, template))), of_train.labels.astype(int)
    predict = predictor(of_train, template, 3)
    fitted = np.array(shown(predict(of_train)))
    best = max(
        sum(
            np.bincount(classes[side], minlength=3).max()
            for side in (values < limit, values >= limit)
        )
        for limit in (*values, np.inf)
    )
    assert (fitted == classes).sum() == best
    said = np.array(shown(predict(of_valid)))
    order = np.argsort(shown(shares(of_valid, template)))
    assert (np.diff(said[order]) != 0).sum() <= 1  # one threshold


def test_a_score_is_the_share_and_single_texts_have_none() -> None:
    template = TEMPLATES[0]
    pairs = encoded([([3, 4], [4, 5], 1), ([3], [3], 4)], template)
    assert shown(predictor(pairs, template, 0)(pairs)) == [1 / 3, 1.0]
    mixed = encoded([([3, 4], [4, 5], 1), ([3], None, 4)], template)
    assert predictor(mixed, template, 0)(mixed) is None
    single = encoded([([3], None, 1)], template)
    assert predictor(single, template, 2)(pairs) is None
    assert predictor(pairs, template, 5)(single) is None


def test_the_task_scores_it_on_validation(tmp_path: Path) -> None:
    stsb(tmp_path / "glue")
    task, data = made("stsb", tmp_path)
    found = task.overlap_prediction(data, None)
    (valid,) = labels(data, "valid").values()
    share = shares(data.parts("valid")["valid"], data.prepared.tokenizer.template)
    expected = stats.pearsonr(share, valid)[0], stats.spearmanr(share, valid)[0]
    assert (found["val/pearson"], found["val/spearman"]) == pytest.approx(expected, abs=1e-6)
    assert found["val/score"] == pytest.approx(np.mean(expected), abs=1e-6)
    assert task.overlap_prediction(data, None) == found  # nothing is left in the metrics


def test_every_part_of_a_task_of_pairs_has_it_and_single_texts_do_not(tmp_path: Path) -> None:
    mnli(tmp_path / "glue")
    cola(tmp_path / "glue")
    task, data = made("mnli", tmp_path)
    found = task.overlap_prediction(data, None)
    template, train = data.prepared.tokenizer.template, data.prepared.splits["train"]
    predict = predictor(train, template, len(task.labels or ()))
    right = [(shown(predict(part)) == part.labels).mean() for part in data.parts("valid").values()]
    assert len(right) == 2
    assert sorted(v for k, v in found.items() if "accuracy" in k) == pytest.approx(sorted(right))
    assert found["val/score"] == pytest.approx(np.mean(right))
    task, data = made("cola", tmp_path)
    assert task.overlap_prediction(data, None) == {}
    assert task.constant_prediction(data, None) != {}


def test_a_part_without_labels_is_left_out(tmp_path: Path) -> None:
    stsb(tmp_path / "glue")
    task, data = made("stsb", tmp_path)
    data.parts("valid")["valid"].labels[:] = np.nan
    assert task.overlap_prediction(data, None) == task.constant_prediction(data, None) == {}


def shown(found: Shares | None) -> list[float]:
    assert found is not None
    return found.tolist()
