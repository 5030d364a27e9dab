"""The recall task is as described, and softmax attention starts to learn it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks import recall


def test_every_answer_is_the_value_of_its_key() -> None:
    ids, answers = recall.task(50, torch.Generator().manual_seed(0))
    assert ids.shape == (50, recall.LENGTH)
    assert answers.shape == (50, recall.QUERIES)
    for sequence, expected in zip(ids.tolist(), answers.tolist(), strict=True):
        pairs = sequence[: 2 * recall.PAIRS]
        values = dict(zip(pairs[::2], pairs[1::2], strict=True))
        assert len(values) == recall.PAIRS  # no key has two values
        assert max(values) < recall.KEYS <= min(values.values())
        queries = sequence[2 * recall.PAIRS :]
        assert [values[key] for key in queries] == expected  # KeyError: a query without a pair


def test_the_pairing_is_drawn_anew_for_each_sequence() -> None:
    ids, _ = recall.task(200, torch.Generator().manual_seed(0))
    pairs = {tuple(pair) for pair in ids[:, : 2 * recall.PAIRS].reshape(-1, 2).tolist()}
    assert len(pairs) == recall.KEYS * recall.VALUES  # every key occurs with every value


def test_the_same_seed_gives_the_same_task() -> None:
    first, again = (recall.task(4, torch.Generator().manual_seed(3))[0] for _ in range(2))
    assert torch.equal(first, again)


def test_attention_learns_within_the_first_steps() -> None:
    model, position = recall.make("attention")
    losses = recall.train(model, 30)
    assert position == "rope"
    assert len(losses) == 30
    assert sum(losses[-5:]) / 5 < sum(losses[:5]) / 5 - 0.1


def test_an_untrained_model_is_no_better_than_guessing() -> None:
    assert recall.evaluate(recall.make("attention")[0]) < 2 / recall.PAIRS


def test_state_is_counted_over_all_layers() -> None:
    dim, depth, heads = recall.SHAPE.dim, recall.SHAPE.depth, recall.SHAPE.heads
    assert recall.state_size(recall.make("attention")[0]) == depth * 2 * recall.LENGTH * dim
    assert recall.state_size(recall.make("retnet")[0]) == depth * dim * dim // (heads // 2)


def test_behind_the_convolution_is_the_same_mixer() -> None:
    model, position = recall.make("delta", behind=True)
    alone, _ = recall.make("delta")
    inner = [type(block.mixer.inner) for block in model.backbone.blocks]
    assert inner == [type(block.mixer) for block in alone.backbone.blocks]
    assert position == "none"


def test_single_rows_join_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine, rows = {"processor": "x"}, {name: {"alone": name} for name in ("a", "b")}
    file = tmp_path / "recall.json"
    file.write_text(json.dumps({"machine": machine, "rows": rows}))
    monkeypatch.setattr(recall, "FILE", file)
    monkeypatch.setattr(recall, "measure", lambda name: {"alone": "new"})
    got = recall.main("b", "c")
    assert got["machine"] == machine
    assert got["rows"] == {"a": {"alone": "a"}, "b": {"alone": "new"}, "c": {"alone": "new"}}
