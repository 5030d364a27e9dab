"""Differential attention against its equations and against transformers' layer."""

from __future__ import annotations

import math
from typing import ClassVar

import pytest
import torch
from einops import rearrange
from torch import Tensor
from transformers.models.diffllama import modeling_diffllama as public
from transformers.models.diffllama.configuration_diffllama import DiffLlamaConfig

from chimera.mixer.differential import Differential
from tests.kit import close, ctx, double, parts, site
from tests.mixer import forms


def build(causal: bool = True, **options: object) -> Differential:
    where = site(depth=4, layer=2, causal=causal)
    mixer = double(lambda: Differential(where, parts(), **options))
    with torch.no_grad():
        mixer.norm.normal_()
    return mixer


def by_hand(mixer: Differential, x: Tensor, layer: int = 2) -> Tensor:
    """Eq. 1 to 3, head by head."""
    heads, k = mixer.heads.h // 2, mixer.head_dim
    q, keys, v = (p(x) for p in (mixer.q_proj, mixer.k_proj, mixer.v_proj))
    start = 0.8 - 0.6 * math.exp(-0.3 * layer)
    lq1, lk1, lq2, lk2 = mixer.lambdas
    scale = torch.exp(lq1 @ lk1) - torch.exp(lq2 @ lk2) + start
    hidden = (torch.ones(x.shape[1], x.shape[1]).triu(1) * mixer.causal).bool()
    outputs = []
    for h in range(heads):
        maps = []
        for n in range(2):
            at = slice((2 * h + n) * k, (2 * h + n + 1) * k)
            scores = q[..., at] @ keys[..., at].mT / k**0.5
            maps.append(scores.masked_fill(hidden, -math.inf).softmax(-1))
        o = (maps[0] - scale * maps[1]) @ v[..., 2 * h * k : 2 * (h + 1) * k]
        o = o / (o.square().mean(-1, keepdim=True) + 1e-5).sqrt() * mixer.norm
        outputs.append((1 - start) * o)
    return mixer.o_proj(torch.cat(outputs, -1))


class TestForms(forms.Forms):
    build, oracle = staticmethod(build), staticmethod(by_hand)
    options: ClassVar = [{}, {"heads": 1}]
    encoders, constant, wide = True, False, False
    tokens = (17,)


def test_the_first_share_of_the_second_map_grows_with_the_logical_layer() -> None:
    mixer = double(lambda: Differential(site(depth=4, layer=1, loops=2), parts()))
    x = torch.randn(1, 5, 32, dtype=torch.float64)
    close(mixer(x, ctx(tokens=5, loop=1)).y, by_hand(mixer, x, layer=5), 1e-10)


@pytest.mark.parametrize("tokens", [1, 12])
def test_is_the_layer_of_transformers(tokens: int) -> None:
    """Copied weights, without positions: rotation by 0. Theirs has all first maps, then second."""
    ours = build(heads=2).float()
    with torch.no_grad():
        ours.norm.fill_(1.0)
    config = DiffLlamaConfig(
        hidden_size=32, num_attention_heads=4, num_key_value_heads=4, rms_norm_eps=1e-5,
        num_hidden_layers=4, attention_bias=False,
    )  # fmt: skip
    config._attn_implementation = "sdpa"
    theirs = public.DiffLlamaAttention(config, 2).eval()
    with torch.no_grad():
        for name in ("q_proj", "k_proj", "v_proj"):
            rows = rearrange(getattr(ours, name).weight, "(h n k) d -> (n h k) d", h=2, n=2)
            getattr(theirs, name).weight.copy_(rows)
        theirs.o_proj.weight.copy_(ours.o_proj.weight)
        names = ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2")
        for name, values in zip(names, ours.lambdas, strict=True):
            getattr(theirs, name).copy_(values)
        x = torch.randn(2, tokens, 32)
        still = torch.ones(2, tokens, 8), torch.zeros(2, tokens, 8)
        got, want = ours(x, ctx(tokens=tokens)).y, theirs(x, still, None)[0]
    close(got, want, 1e-5)
