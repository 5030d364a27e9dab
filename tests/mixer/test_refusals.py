"""Options of mixers that do not fit the model are refused in one line."""

from __future__ import annotations

from typing import Any

import pytest

from chimera.mixer.delta import DeltaProduct
from chimera.mixer.differential import Differential
from chimera.mixer.gated_delta import GatedDelta
from chimera.mixer.gla import GatedLinear
from chimera.mixer.hgrn2 import HGRN2
from chimera.mixer.kda import KimiDelta
from chimera.mixer.linear import LinearAttention
from chimera.mixer.log_linear import LogLinear
from chimera.mixer.mamba2 import Mamba2
from chimera.mixer.mesa import Mesa
from chimera.mixer.mla import LatentAttention
from chimera.mixer.mlstm import MLSTM
from chimera.mixer.parallel import Parallel
from chimera.mixer.retnet import Retention
from chimera.mixer.routed import Routed
from chimera.mixer.rwkv7 import RWKV7
from chimera.mixer.titan_attention import TitanAttention
from chimera.mixer.titan_memory import TitanMemory
from chimera.mixer.ttt_linear import TTTLinear
from tests.kit import parts, site

WIDTH = "heads=5 does not divide the model width 32"


@pytest.mark.parametrize(
    "mixer",
    [
        DeltaProduct, HGRN2, KimiDelta, LatentAttention, LinearAttention, Mesa, RWKV7, TitanMemory,
        TTTLinear,
    ],
)  # fmt: skip
def test_heads_divide_the_width(mixer: Any) -> None:
    with pytest.raises(ValueError, match=WIDTH):
        mixer(site(), parts(), heads=5)


@pytest.mark.parametrize(
    ("mixer", "choice", "said"),
    [
        (Differential, {"heads": 5}, "heads=10 does not divide the model width 32"),
        (GatedDelta, {"key_heads": 3}, "key_heads=3 of mixer=gated_delta does not divide 4 heads"),
        (GatedDelta, {"heads": 5}, "give heads of 4.8 and 9.6, no whole numbers"),
        (GatedLinear, {"heads": 5}, "give heads of 3.2 and 6.4, no whole numbers"),
        (GatedLinear, {"chunk": 48}, "chunk=48 is no power of two: choose 64"),
        (LogLinear, {"head_dim": 48}, "mixer=log_linear with inner width 64: head_dim="),
        (LogLinear, {"groups": 3, "head_dim": 8}, "mixer=log_linear with inner width 64"),
        (Mamba2, {"head_dim": 48}, "mixer=mamba2 with inner width 64: head_dim="),
        (Mamba2, {"groups": 3, "head_dim": 8}, "mixer=mamba2 with inner width 64: head_dim="),
        (Mesa, {"ridge": 1.0}, "ridge=1.0 of mixer=mesa has to be below 1"),
        (Mesa, {"chunk": 48}, "chunk=48 is no power of two: choose 64"),
        (MLSTM, {"heads": 5}, "heads=5 does not divide the inner width 64"),
        (MLSTM, {"qkv_block": 7}, "qkv_block=7 does not divide"),
        (Parallel, {"members": {}}, "mixer=parallel has no members"),
        (Retention, {"heads": 3}, "heads=3"),
        (Retention, {"heads": 32}, "heads=32"),  # heads of width 1 have no pairs
        (Routed, {"members": {}}, "at least one member"),
        (TitanAttention, {"heads": 2, "kv_heads": 4}, "kv_heads=4 does not divide heads=2"),
    ],
)
def test_what_does_not_fit(mixer: Any, choice: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        mixer(site(), parts(), **choice)


@pytest.mark.parametrize("mixer", [LinearAttention, Retention])
def test_an_encoder_has_no_state(mixer: Any) -> None:
    with pytest.raises(ValueError, match="no state"):
        mixer(site(causal=False), parts()).init_state(1)
