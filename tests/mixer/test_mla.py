"""Multi-head latent attention against its equations and transformers' layer of DeepSeek-V3."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.models.deepseek_v3.configuration_deepseek_v3 import DeepseekV3Config
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention

from chimera.mixer.mla import LatentAttention
from chimera.ops.rotary import angles, frequencies
from chimera.position.rope import Rotary
from tests.kit import close, ctx, double, parts, site
from tests.mixer import forms

OPTIONS: list[dict[str, Any]] = [{}, {"rank": 6, "rotated": 2, "query_rank": 10}]


def build(causal: bool = True, **options: Any) -> LatentAttention:
    chosen = parts(position=Rotary)
    mixer = double(lambda: LatentAttention(site(causal=causal), chosen, **options))
    with torch.no_grad():
        mixer.kv_norm.normal_()
        if mixer.q_norm is not None:
            mixer.q_norm.normal_()
    return mixer


def public(ours: LatentAttention) -> DeepseekV3Attention:
    """Their layer with our weights, in float64."""
    config = DeepseekV3Config(
        hidden_size=32, num_attention_heads=4, num_key_value_heads=4, num_hidden_layers=1,
        q_lora_rank=None if ours.q_down is None else ours.q_down.weight.shape[0],
        kv_lora_rank=ours.rank, qk_rope_head_dim=ours.rotated, qk_nope_head_dim=8, v_head_dim=8,
        attention_bias=False, rope_interleave=True,
    )  # fmt: skip
    config._attn_implementation = "sdpa"
    theirs = DeepseekV3Attention(config, 0).double().eval()
    # A head's rows of W_ukv are its k_n and v in both.
    pairs = [(theirs.kv_a_proj_with_mqa, ours.kv_down), (theirs.kv_b_proj, ours.kv_proj)]
    pairs += [(theirs.o_proj, ours.o_proj)]
    pairs += [(theirs.q_proj if ours.q_down is None else theirs.q_b_proj, ours.q_proj)]
    with torch.no_grad():
        for their, own in pairs:
            their.weight.copy_(own.weight)
        theirs.kv_a_layernorm.weight.copy_(ours.kv_norm)
        if ours.q_down is not None:
            theirs.q_a_proj.weight.copy_(ours.q_down.weight)
            theirs.q_a_layernorm.weight.copy_(ours.q_norm)
    return theirs


def by_equations(mixer: LatentAttention, x: Tensor) -> Tensor:
    """Equations of the module's docstring, a query and a head at a time."""
    k, r, t = mixer.head_dim, mixer.rotated, x.shape[1]
    c, shared = mixer.kv_down(x).split((mixer.rank, r), -1)
    keys, values = mixer.kv_proj(normed(c, mixer.kv_norm)).unflatten(-1, (-1, 2 * k)).split(k, -1)
    c_q = x if mixer.q_down is None else normed(mixer.q_down(x), mixer.q_norm)
    q_n, q_r = mixer.q_proj(c_q).unflatten(-1, (-1, k + r)).split((k, r), -1)
    turned = turn(shared)
    rows = []
    for row, i in product(range(len(x)), range(t)):
        heads = []
        for h in range(mixer.heads):
            end = i + 1 if mixer.causal else t
            scores = keys[row, :end, h] @ q_n[row, i, h]
            scores = scores + turned[row, :end] @ turn(q_r[row, :, h])[i]
            heads.append((scores / (k + r) ** 0.5).softmax(0) @ values[row, :end, h])
        rows.append(mixer.o_proj(torch.cat(heads)))
    return torch.stack(rows).view_as(x)


def normed(x: Tensor, weight: Tensor | None) -> Tensor:
    assert weight is not None
    return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight


def turn(x: Tensor) -> Tensor:
    """RoPE of [… t r]: neighbouring channels are a complex number."""
    t, pairs = x.shape[-2], x.shape[-1] // 2
    rates = 10000.0 ** (-torch.arange(pairs, dtype=torch.float64) / pairs)
    angle = torch.arange(t, dtype=torch.float64)[:, None] * rates
    z = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(z * torch.polar(torch.ones_like(angle), angle)).flatten(-2)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("tokens", [1, 12])
def test_is_the_layer_of_deepseek(tokens: int, options: dict[str, Any]) -> None:
    """Their norm and their rotation are in float32, which sets the tolerance."""
    ours, x = build(**options), torch.randn(2, tokens, 32, dtype=torch.float64)
    theirs = public(ours)
    cos, sin = angles(torch.arange(tokens)[None], frequencies(ours.rotated // 2, 10000.0, like=x))
    cos, sin = (torch.cat([y, y], -1).reshape(1, tokens, -1) for y in (cos, sin))
    want, _ = theirs(x, (cos, sin), None)
    close(ours(x, ctx(tokens=tokens)).y, want, 1e-6)


class TestForms(forms.Forms):
    build, oracle = staticmethod(build), staticmethod(by_equations)
    options = OPTIONS
    encoders, constant, wide = True, False, False
    tokens = (9,)


def test_the_cache_is_small() -> None:
    mixer = build(**OPTIONS[1])
    state = mixer(torch.randn(3, 5, 32).double(), ctx(tokens=5), mixer.init_state(3)).state
    assert (state.k.shape, state.v.shape) == ((3, 1, 5, 6), (3, 1, 5, 2))
