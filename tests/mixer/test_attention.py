"""Softmax attention against `transformers`' Llama with equal weights (SPEC M1, M2, rope)."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from einops import rearrange
from torch import Tensor
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaConfig,
    LlamaRotaryEmbedding,
)

from chimera.mixer.attention import Attention
from chimera.position.rope import Rotary
from tests.kit import close, ctx, double, parts, ragged, site

SCALINGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "none": ({}, {"rope_type": "default"}),
    "linear": ({"scaling": "linear", "factor": 2.0}, {"rope_type": "linear", "factor": 2.0}),
    "yarn": (
        {"scaling": "yarn", "factor": 2.0, "original_len": 16},
        {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 16},
    ),
}


def split_halves(weight: Tensor, heads: int) -> Tensor:
    """Rows in Llama's order: Llama pairs i with i + k/2, Chimera 2i with 2i + 1."""
    return rearrange(weight, "(h half two) d -> (h two half) d", h=heads, two=2)


def pair(kv_heads: int, scaling: str) -> tuple[Any, Any, Any]:
    """Chimera's layer, Llama's layer with equal weights, and Llama's rotation."""
    own, theirs = SCALINGS[scaling]
    position = partial(Rotary, base=100.0, **own)
    ours = double(lambda: Attention(site(), parts(position=position), kv_heads=kv_heads))
    config = LlamaConfig(
        hidden_size=32,
        num_attention_heads=4,
        num_key_value_heads=kv_heads,
        max_position_embeddings=64,
        rope_parameters={"rope_theta": 100.0, **theirs},
        attn_implementation="sdpa",
    )
    llama = double(lambda: LlamaAttention(config, layer_idx=0))
    with torch.no_grad():
        for name, heads in (("q_proj", 4), ("k_proj", kv_heads)):
            weight = split_halves(getattr(ours, name).weight, heads)
            getattr(llama, name).weight.copy_(weight)
        llama.v_proj.weight.copy_(ours.v_proj.weight)
        llama.o_proj.weight.copy_(ours.o_proj.weight)
    return ours, llama, LlamaRotaryEmbedding(config)


def run(llama: Any, rotary: Any, x: Tensor, real: Tensor, pos: Tensor) -> Tensor:
    seen = real[:, None, None, :] & torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
    mask = torch.zeros(seen.shape, dtype=x.dtype).masked_fill(~seen, -1e9)
    # Llama's angles are float32, for any dtype of the model.
    turn = rotary(x, pos)
    return llama(x, turn, mask)[0]


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_equals_llama(kv_heads: int, scaling: str) -> None:
    ours, llama, rotary = pair(kv_heads, scaling)
    x = torch.randn(2, 24, 32).double().requires_grad_()
    y = ours(x, ctx(tokens=24)).y
    pos = torch.arange(24).expand(2, -1)
    want = run(llama, rotary, x, torch.ones(2, 24, dtype=torch.bool), pos)
    close(y, want, 1e-5)
    (got,), (expected,) = (torch.autograd.grad(z.sin().sum(), x) for z in (y, want))
    close(got, expected, 1e-5)


def test_equals_llama_on_padding() -> None:
    ours, llama, rotary = pair(2, "none")
    mask = ragged([9, 4], left=True)
    x, here = torch.randn(2, 9, 32).double(), ctx(mask)
    want = run(llama, rotary, x, mask, here.pos)
    close(ours(x, here).y[mask], want[mask], 1e-5)


def test_equals_llama_without_rotation_to_the_last_digit() -> None:
    """At position 0 there is no rotation, and so no rounding of angles to float32."""
    ours, llama, rotary = pair(2, "none")
    x = torch.randn(2, 9, 32).double()
    ours.position = parts().position(site(), 4, 8)
    here = torch.ones(2, 9, dtype=torch.bool)
    close(ours(x, ctx(tokens=9)).y, run(llama, rotary, x, here, torch.zeros(2, 9).long()))
