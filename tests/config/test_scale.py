"""Effects of `scale=` on a row: it wins over presets and rows, and loses to the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chimera.config.compose import compose, plain
from chimera.config.groups import forget
from chimera.config.scale import past_bounds, past_lines
from chimera.errors import UserError
from chimera.train.check import check
from tests.config.folders_kit import folders

ROW = "+bitnet_qdyt/norms=qdyt"


@pytest.mark.parametrize("scale", ["smoke", "small", "medium"])
def test_bounds_win_over_the_row_and_lose_to_the_command_line(scale: str) -> None:
    words = [ROW, f"scale={scale}"]
    cfg = plain(compose(words))
    bounds = cfg["scale"]["bounds"]
    assert cfg["trainer"]["max_steps"] == bounds["trainer.max_steps"]
    assert cfg["model"]["dim"] == bounds["model.dim"]
    assert past_bounds(cfg) == {}
    longer = plain(compose([*words, "trainer.max_steps=5000", "trainer.limit_test_batches=null"]))
    assert longer["trainer"]["max_steps"] == 5000
    assert longer["trainer"]["limit_test_batches"] is None
    assert longer["model"]["dim"] == bounds["model.dim"]


def test_what_is_past_a_bound_is_named() -> None:
    words = [ROW, "scale=small", "trainer.max_steps=50000", "model.dim=64", "optim.lr=1"]
    cfg = plain(compose([*words, "trainer.log_every_n_steps=50"]))  # not a matter of numbers
    assert past_bounds(cfg) == {"trainer.max_steps": {"value": 50000, "bound": 1000}}
    (line,) = past_lines(cfg)
    assert line.startswith("scale=small bounds trainer.max_steps by 1000, and this run has 50000;")
    assert not past_lines(plain(compose([ROW, "trainer.max_steps=50000"])))
    row = ["+saidl/positions=rope", "scale=small", "trainer.max_steps=900"]
    assert past_bounds(plain(compose(row)))["trainer.max_steps"]["bound"] == 400  # its preset's
    share = plain(compose(["scale=smoke", "trainer.limit_val_batches=1.0"]))
    assert past_bounds(share) == {"trainer.limit_val_batches": {"value": 1.0, "bound": 2}}


def test_medium_keeps_the_ratios_of_saidls_budgets() -> None:
    budgets = {"positions=rope": 1000, "extrapolation=rope": 3000, "hybrids=baseline": 11680}
    budgets["baseline=baseline_learned"] = 5840
    for row, steps in budgets.items():
        medium, paper = (
            plain(compose([f"+saidl/{row}", f"scale={scale}"])) for scale in ("medium", "paper")
        )
        assert medium["trainer"]["max_steps"] == paper["trainer"]["max_steps"] == steps
        assert medium["data"]["batch_size"] == paper["data"]["batch_size"]
        assert 4 * medium["data"]["seq_len"] == paper["data"]["seq_len"]
    words = ["+saidl/attention=sliding_window", "scale=medium"]
    assert plain(compose(words))["mixer"]["window"] == 64
    assert plain(compose([*words, "mixer.window=256"]))["mixer"]["window"] == 256


def test_choices_and_values_win_over_the_presets_and_lose_to_the_command_line() -> None:
    assert plain(compose([ROW]))["choices"]["data"] == "wikitext2"
    assert plain(compose([ROW, "scale=paper"]))["choices"]["tokenizer"] == "bert"
    assert plain(compose([ROW, "scale=smoke"]))["choices"]["data"] == "pydocs"
    mine = plain(compose([ROW, "scale=smoke", "data=text", "data.path=x"]))
    assert (mine["choices"]["data"], mine["data"]["path"]) == ("text", "x")
    assert mine["choices"]["tokenizer"] == "sentencepiece"
    titan = ["+titan/ablations=full"]
    for words, rate, precision in (
        (titan, 1e-4, "fp16"),
        ([*titan, "scale=small"], 2e-3, "fp32"),
        ([*titan, "scale=small", "optim.lr=3e-4"], 3e-4, "fp32"),
    ):
        config = plain(compose(words))
        assert (config["optim"]["lr"], config["precision"]) == (rate, precision)


def test_a_preset_of_ones_own_says_what_a_scale_means_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One file: bounds, values, shares and choices, over those of the preset that it builds on."""
    file = tmp_path / "preset/mine.yaml"
    file.parent.mkdir()
    base = "# @package _global_\ndefaults:\n  - saidl_gpt\n  - _self_\nat:\n  small:\n"
    own = "    bounds: {model.depth: 3, mixer.window: null}\n    shares: {model.heads: 0.5}\n"
    file.write_text(f"{base}{own}    values: {{optim.lr: 0.5}}\n    choices: {{tokenizer: word}}\n")
    with folders(monkeypatch, tmp_path):
        config = plain(compose(["preset=mine", "scale=small"]))
        assert (
            config["scale"]["bounds"] | {"model.depth": 3, "data.seq_len": 128}
            == (config["scale"]["bounds"])
        )
        assert "mixer.window" not in config["scale"]["bounds"]
        assert (config["model"]["heads"], config["optim"]["lr"]) == (4, 0.5)
        assert config["choices"]["tokenizer"] == "word"
        assert plain(compose(["preset=mine"]))["model"]["depth"] == 6
        file.write_text(f"{base}    bonds: {{model.depth: 3}}\n")
        forget()
        with pytest.raises(UserError, match=r"mine: at\.small\.bonds .* did you mean 'bounds'"):
            compose(["preset=mine", "scale=small"])


def test_medium_keeps_the_share_of_the_warm_up_of_alpha() -> None:
    shares = []
    for scale in ("medium", "paper"):
        config = plain(compose(["+bitnet_qdyt/norms=qdyt", f"scale={scale}"]))
        warm = config["norm"]["callbacks"]["qdyt"]["warmup_steps"]
        shares.append(warm / config["trainer"]["max_steps"])
    assert shares == [0.1, 0.1]


@pytest.mark.parametrize("scale", ["smoke", "small", "medium"])
def test_presets_keep_their_proportions_at_every_scale(scale: str) -> None:
    def model(name: str) -> dict[str, Any]:
        return plain(compose([f"preset={name}", f"scale={scale}"]))

    names = ("bert_base", "bitnet_qdyt_base", "bitnet_qdyt_large")
    depth = [model(name)["model"]["depth"] for name in names]
    assert depth == sorted(set(depth))
    titan = model("titan_bert_ultra")
    assert titan["model"]["depth"] % len(titan["mixer"]["cycle"]) == 0  # whole patterns
    assert titan["model"]["heads"] == 2 * titan["mixer"]["members"]["retnet"]["heads"]
    assert (titan["model"]["loops"], titan["ffn"]["experts"]) == (2, 4)


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


def test_titan_at_scale_paper_reads_the_spanish_redpajama() -> None:
    words = ["+titan/ablations=full", "scale=paper"]
    assert plain(compose(words))["choices"]["data"] == "redpajama_es"
    own = plain(compose([*words, "data.path=/nowhere"]))
    with pytest.raises(UserError, match=r"data\.path=/nowhere"):
        check(own)
