"""SAIDL's exact parameter counts: Table 1 (18.1 M) and Table 6."""

from __future__ import annotations

import pytest
import torch
from hydra.utils import instantiate

from chimera.config.compose import compose, plain
from chimera.config.tables import load
from chimera.model.assemble import build_model, choose

GPT2 = 50257


def parameters(words: list[str]) -> int:
    config = plain(compose(words))
    with torch.device("meta"):
        shape = instantiate(config["model"], _convert_="all")
        model = build_model(shape, choose(config), vocab_size=GPT2, causal=True)
    return sum(p.numel() for p in model.parameters())


def test_the_preset_has_table_1s_parameters() -> None:
    body = 6 * (4 * 256**2 + 2 * 256 * 1024 + 1024 + 256 + 4 * 256) + 2 * 256
    assert parameters(["preset=saidl_gpt"]) == GPT2 * 256 + 2048 * 256 + body == 18_123_008


@pytest.mark.parametrize("row", [row.name for row in load("saidl/hybrids").rows])
def test_hybrids_have_table_6s_parameters(row: str) -> None:
    printed = {p.row: p.value for p in load("saidl/hybrids").published if p.column == "parameters"}
    if row in printed:
        assert parameters([f"+saidl/hybrids={row}"]) == printed[row]
    else:
        assert row.startswith("aft") or row in {"alibi", "conv_plain"}  # ours


def test_a_decoders_head_is_tied_to_the_embedding() -> None:
    config = plain(compose(["preset=saidl_gpt", "model.dim=64"]))
    assert config["task"]["name"] == "causal_lm"
    assert config["model"]["tie_head"]
