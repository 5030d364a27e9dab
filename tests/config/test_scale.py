"""Effects of `scale=` on a row: bounds win over everything, choices and values over presets."""

from __future__ import annotations

import pytest

from chimera.config.compose import compose, plain
from chimera.config.scale import clamped
from chimera.errors import UserError

ROW = "+bitnet_qdyt/norms=qdyt"


@pytest.mark.parametrize("scale", ["smoke", "small"])
def test_bounds_win_over_the_row_and_the_command_line(scale: str) -> None:
    for words in ([ROW, f"scale={scale}"], [f"scale={scale}", ROW, "trainer.max_steps=50000"]):
        cfg = plain(compose(words))
        bounds = cfg["scale"]["bounds"]
        assert cfg["trainer"]["max_steps"] == bounds["trainer.max_steps"]
        assert cfg["model"]["dim"] == bounds["model.dim"]


def test_a_clamped_override_is_reported() -> None:
    words = [ROW, "scale=small", "trainer.max_steps=50000", "model.dim=64", "optim.lr=1"]
    (line,) = clamped(plain(compose(words)), words)
    assert line.startswith("scale=small bounds trainer.max_steps: 1000, not 50000;")
    assert not clamped(plain(compose([ROW, "trainer.max_steps=50000"])), words)
    row = ["+saidl/positions=rope", "scale=small", "trainer.max_steps=900"]
    assert "not 900" in clamped(plain(compose(row)), row)[0]  # a bound of its preset


def test_a_choice_of_the_scale_wins_over_the_presets_and_loses_to_the_command_line() -> None:
    assert plain(compose([ROW]))["choices"]["data"] == "wikitext2"
    assert plain(compose([ROW, "scale=paper"]))["choices"]["tokenizer"] == "bert"
    assert plain(compose([ROW, "scale=smoke"]))["choices"]["data"] == "pydocs"
    mine = plain(compose([ROW, "scale=smoke", "data=text", "data.path=x"]))
    assert mine["choices"]["data"] == "text"
    assert mine["data"]["path"] == "x"
    assert mine["choices"]["tokenizer"] == "sentencepiece"


def test_a_value_of_the_scale_wins_over_the_presets_and_loses_to_the_command_line() -> None:
    titan = "+titan/ablations=full"
    assert plain(compose([titan]))["optim"]["lr"] == 1e-4
    assert plain(compose([titan, "scale=small"]))["optim"]["lr"] == 2e-3
    assert plain(compose([titan, "scale=small", "optim.lr=3e-4"]))["optim"]["lr"] == 3e-4
    assert plain(compose([titan]))["precision"] == "fp16"
    assert plain(compose([titan, "scale=small"]))["precision"] == "fp32"


@pytest.mark.parametrize("scale", ["smoke", "small"])
def test_large_is_deeper_than_base_and_base_than_bert_at_every_scale(scale: str) -> None:
    depth = [
        plain(compose([f"preset={name}", f"scale={scale}"]))["model"]["depth"]
        for name in ("bert_base", "bitnet_qdyt_base", "bitnet_qdyt_large")
    ]
    assert depth == sorted(set(depth))


@pytest.mark.parametrize("scale", ["smoke", "small"])
def test_titan_has_whole_patterns_and_retention_half_the_heads_at_every_scale(scale: str) -> None:
    cfg = plain(compose(["preset=titan_bert_ultra", f"scale={scale}"]))
    assert cfg["model"]["depth"] % len(cfg["mixer"]["cycle"]) == 0
    assert cfg["model"]["heads"] == 2 * cfg["mixer"]["members"]["retnet"]["heads"]
    assert cfg["model"]["loops"] == 2
    assert cfg["ffn"]["experts"] == 4


def test_scale_paper_does_not_change_the_preset() -> None:
    one, other = (
        plain(compose(["preset=bitnet_qdyt_base", s])) for s in ("scale=none", "scale=paper")
    )
    for key in ("model", "data", "trainer", "optim", "quant"):
        assert one[key] == other[key]
    assert one["model"]["dim"] == 768
    assert one["data"]["batch_size"] * one["trainer"]["accumulate_grad_batches"] == 32


def test_a_presets_settings_of_a_replaced_component_are_dropped() -> None:
    cfg = plain(compose(["preset=bert_base", "mixer=mamba", "scale=smoke"]))
    assert "bias" not in cfg["mixer"]
    assert cfg["ffn"]["bias"] is True
    cfg = plain(compose(["preset=tormented_bert", "mixer=titan_attention", "scale=smoke"]))
    assert "members" not in cfg["mixer"]
    assert plain(compose(["preset=tormented_bert"]))["mixer"]["members"]["ode"]["steps"] == 4


def test_titan_at_scale_paper_asks_for_data_path() -> None:
    from chimera.train.check import check

    with pytest.raises(UserError, match=r"data\.path"):
        check(plain(compose(["+titan/ablations=full", "scale=paper"])))
