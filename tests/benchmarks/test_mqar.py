"""The recall task is as described, and softmax attention starts to learn it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks import mqar, mqar_report


def test_every_answer_is_the_value_of_its_key() -> None:
    ids, answers = mqar.task(50, torch.Generator().manual_seed(0))
    assert ids.shape == (50, mqar.LENGTH)
    assert answers.shape == (50, mqar.QUERIES)
    for sequence, expected in zip(ids.tolist(), answers.tolist(), strict=True):
        pairs = sequence[: 2 * mqar.PAIRS]
        values = dict(zip(pairs[::2], pairs[1::2], strict=True))
        assert len(values) == mqar.PAIRS  # no key has two values
        assert max(values) < mqar.KEYS <= min(values.values())
        queries = sequence[2 * mqar.PAIRS :]
        assert [values[key] for key in queries] == expected  # KeyError: a query without a pair


def test_the_pairing_is_drawn_anew_for_each_sequence() -> None:
    ids, _ = mqar.task(200, torch.Generator().manual_seed(0))
    pairs = {tuple(pair) for pair in ids[:, : 2 * mqar.PAIRS].reshape(-1, 2).tolist()}
    assert len(pairs) == mqar.KEYS * mqar.VALUES  # every key occurs with every value


def test_the_same_seed_gives_the_same_task() -> None:
    first, again = (mqar.task(4, torch.Generator().manual_seed(3))[0] for _ in range(2))
    assert torch.equal(first, again)


def test_attention_learns_within_the_first_steps() -> None:
    model, position = mqar.make("attention")
    losses = mqar.train(model, 30)
    assert position == "rope"
    assert len(losses) == 30
    assert sum(losses[-5:]) / 5 < sum(losses[:5]) / 5 - 0.1


def test_an_untrained_model_is_no_better_than_guessing() -> None:
    assert mqar.evaluate(mqar.make("attention")[0]) < 2 / mqar.PAIRS


def test_state_is_counted_over_all_layers() -> None:
    dim, depth, heads = mqar.SHAPE.dim, mqar.SHAPE.depth, mqar.SHAPE.heads
    assert mqar.state_size(mqar.make("attention")[0]) == depth * 2 * mqar.LENGTH * dim
    assert mqar.state_size(mqar.make("retnet")[0]) == depth * dim * dim // (heads // 2)


def test_behind_the_convolution_is_the_same_mixer() -> None:
    model, position = mqar.make("delta", behind=True)
    alone, _ = mqar.make("delta")
    inner = [type(block.mixer.inner) for block in model.backbone.blocks]
    assert inner == [type(block.mixer) for block in alone.backbone.blocks]
    assert position == "none"


def test_single_rows_join_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = {"accuracy": 1.0, "steps": 9, "seconds": 1.0, "state": 5}
    new = {"accuracy": 0.5, "steps": 8, "seconds": 2.0, "state": 7}
    rows = {name: {"position": "none", "alone": old, "behind": None} for name in ("a", "b")}
    facts = {"rate": 0.1, "steps": 9, "batch": 2, "queries": 3}
    file = tmp_path / "mqar.json"
    file.write_text(json.dumps({"machine": {"processor": "x"}, "rows": rows, **facts}))
    monkeypatch.setattr(mqar, "FILE", file)
    monkeypatch.setattr(mqar_report, "TO", tmp_path / "mqar.md")
    monkeypatch.setattr(mqar, "measure", lambda name: {**rows["a"], "alone": new})
    mqar.add(["b", "c"])
    got = json.loads(file.read_text())
    assert got["machine"] == {"processor": "x"}
    assert {name: row["alone"]["accuracy"] for name, row in got["rows"].items()} == {
        "a": 1.0, "b": 0.5, "c": 0.5,
    }  # fmt: skip
    assert "| `c` | none | 50.0% | 8 |" in (tmp_path / "mqar.md").read_text(encoding="utf-8")
