"""A constant prediction is scored as the data set scores a model, part by part."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import numpy as np
import pytest
from sklearn import metrics as theirs

from chimera.config.settings import Optim
from chimera.contract_tests import zoo
from chimera.data.batch.labelled import LabelledDataModule
from chimera.data.corpus.glue import Glue
from chimera.data.encode.examples import class_counts
from chimera.data.tokenizer.word import Words
from chimera.task.sequence_classification import SequenceClassification
from tests.data.glue import cola, stsb
from tests.task.kit import SHAPE, classification


def made(name: str, folder: Path) -> tuple[SequenceClassification, LabelledDataModule]:
    corpus = Glue(task=name, path=str(folder / "glue"), batch_size=4, cache_dir=str(folder))
    data = LabelledDataModule(corpus, Words())
    vocab = data.prepared.tokenizer.vocab_size
    model = zoo.model(SHAPE, causal=False, vocab_size=vocab, position="rope")
    return SequenceClassification(model, Optim(lr=1e-3), 3, vocab), data


def labels(data: LabelledDataModule, split: str) -> dict[str, np.ndarray]:
    return {name: part.labels for name, part in data.parts(split).items()}  # type: ignore[arg-type]


def test_the_most_frequent_class_of_train_in_each_part(tmp_path: Path) -> None:
    task, data = cast(
        tuple[SequenceClassification, LabelledDataModule], classification(tmp_path, 3)
    )
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
    task.configure_for(data, "fit")
    (valid,) = labels(data, "valid").values()
    found = task.constant_prediction(data, None)
    assert (found["val/mcc"], found["val/score"]) == (0.0, 0.0)
    majority = np.bincount(np.concatenate(list(labels(data, "train").values())).astype(int))
    expected = theirs.accuracy_score(valid, np.full(len(valid), majority.argmax()))
    assert found["val/accuracy"] == pytest.approx(expected)
    task, data = made("stsb", tmp_path)
    task.configure_for(data, "fit")
    found = task.constant_prediction(data, None)
    assert found == {"val/pearson": 0.0, "val/spearman": 0.0, "val/score": 0.0}


def test_the_batches_of_a_limited_validation(tmp_path: Path) -> None:
    """What stands beside a model is of the same examples; those without a label do not count."""
    task, data = cast(
        tuple[SequenceClassification, LabelledDataModule], classification(tmp_path, 3)
    )
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
