"""What the tokens that two texts share say of a pair, scored as a model is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from chimera.data.encode.examples import Encoded, frame
from chimera.data.tokenizer.base import Template
from chimera.task.sequence_classification import Shares, predictor, shares
from tests.data.glue import cola, mnli, stsb
from tests.task.test_constant_prediction import labels, made

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
        assert _of(found) == [len(both) / max(1, len(either)) for both, either in ids]


@given(PAIRS, PAIRS)
def test_no_threshold_is_right_more_often_on_train(
    train: list[tuple[list[int], list[int], int]], valid: list[tuple[list[int], list[int], int]]
) -> None:
    template = TEMPLATES[0]
    of_train, of_valid = (encoded(list(rows), template) for rows in (train, valid))
    values, classes = np.array(_of(shares(of_train, template))), of_train.labels.astype(int)
    predict = predictor(of_train, template, 3)
    fitted = np.array(_of(predict(of_train)))
    best = max(
        sum(
            np.bincount(classes[side], minlength=3).max()
            for side in (values < limit, values >= limit)
        )
        for limit in (*values, np.inf)
    )
    assert (fitted == classes).sum() == best
    said = np.array(_of(predict(of_valid)))
    order = np.argsort(_of(shares(of_valid, template)))
    assert (np.diff(said[order]) != 0).sum() <= 1  # one threshold


def test_a_score_is_the_share_and_single_texts_have_none() -> None:
    template = TEMPLATES[0]
    pairs = encoded([([3, 4], [4, 5], 1), ([3], [3], 4)], template)
    assert _of(predictor(pairs, template, 0)(pairs)) == [1 / 3, 1.0]
    mixed = encoded([([3, 4], [4, 5], 1), ([3], None, 4)], template)
    assert predictor(mixed, template, 0)(mixed) is None
    single = encoded([([3], None, 1)], template)
    assert predictor(single, template, 2)(pairs) is None
    assert predictor(pairs, template, 5)(single) is None


def test_the_task_scores_it_on_validation(tmp_path: Path) -> None:
    stsb(tmp_path / "glue")
    task, data = made("stsb", tmp_path)
    task.configure_for(data, "fit")
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
    task.configure_for(data, "fit")
    found = task.overlap_prediction(data, None)
    template, train = data.prepared.tokenizer.template, data.prepared.splits["train"]
    predict = predictor(train, template, len(task.labels or ()))
    right = [(_of(predict(part)) == part.labels).mean() for part in data.parts("valid").values()]
    assert len(right) == 2
    assert sorted(v for k, v in found.items() if "accuracy" in k) == pytest.approx(sorted(right))
    assert found["val/score"] == pytest.approx(np.mean(right))
    task, data = made("cola", tmp_path)
    task.configure_for(data, "fit")
    assert task.overlap_prediction(data, None) == {}
    assert task.constant_prediction(data, None) != {}


def test_a_part_without_labels_is_left_out(tmp_path: Path) -> None:
    stsb(tmp_path / "glue")
    task, data = made("stsb", tmp_path)
    task.configure_for(data, "fit")
    data.parts("valid")["valid"].labels[:] = np.nan
    assert task.overlap_prediction(data, None) == task.constant_prediction(data, None) == {}


def _of(found: Shares | None) -> list[float]:
    assert found is not None
    return found.tolist()
