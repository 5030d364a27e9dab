"""Forgetting attention against its equations."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chimera.mixer.attention import Attention
from chimera.mixer.forgetting import Forgetting
from tests.kit import close, ctx, double, grads, parts, site
from tests.mixer import forms


def build(**options: object) -> Forgetting:
    mixer = double(lambda: Forgetting(site(), parts(), **options))
    assert isinstance(mixer, Forgetting)
    with torch.no_grad():
        mixer.gate_bias.normal_()
    return mixer


def by_hand(mixer: Forgetting, x: Tensor) -> Tensor:
    """The product of the gates between a key and a query weights exp of their score."""
    h, k, t = mixer.heads.h, mixer.head_dim, x.shape[1]
    q, keys, v = mixer.project(x)
    keys, v = (y.repeat_interleave(h // y.shape[1], 1) for y in (keys, v))
    f = (mixer.gate_proj(x) + mixer.gate_bias).sigmoid().mT
    weights = x.new_zeros(len(x), h, t, t)
    for i in range(t):
        for j in range(i + 1):
            score = (q[:, :, i] * keys[:, :, j]).sum(-1) / k**0.5
            weights[:, :, i, j] = score.exp() * f[:, :, j + 1 : i + 1].prod(-1)
    o = weights / weights.sum(-1, keepdim=True) @ v
    return mixer.output(o)


class TestForms(forms.Forms):
    build, oracle = staticmethod(build), staticmethod(by_hand)
    options: ClassVar = [{}, {"kv_heads": 2}]
    constant, wide = False, False
    tokens = (17,)


def test_half_precision_keeps_the_sum_of_gates_wide() -> None:
    mixer = build().bfloat16()
    out = mixer(torch.randn(1, 9, 32).bfloat16(), ctx(tokens=9), mixer.init_state(1))
    assert out.state.total.dtype == torch.float32


def test_open_gates_are_attention() -> None:
    mixer, plain = build(), double(lambda: Attention(site(), parts()))
    with torch.no_grad():
        mixer.gate_bias.fill_(1e3)
    for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
        setattr(plain, name, getattr(mixer, name))
    x = torch.randn(2, 9, 32, dtype=torch.float64)
    close(mixer(x, ctx(tokens=9)).y, plain(x, ctx(tokens=9)).y, 1e-12)


def test_closed_gates_see_the_token_alone() -> None:
    mixer, x = build(), torch.randn(2, 9, 32, dtype=torch.float64)
    with torch.no_grad():
        mixer.gate_bias.fill_(-1e4)
    y = mixer(x, ctx(tokens=9)).y
    close(y, mixer.o_proj(mixer.v_proj(x)))
    assert all(g.isfinite().all() for g in grads(y.sum(), mixer))


def test_a_bias_of_positions_adds() -> None:
    """ALiBi and a gate of the same slope: twice the slope."""
    from chimera.position.alibi import Alibi

    both = double(lambda: Forgetting(site(), parts(position=Alibi)))
    alone = double(lambda: Attention(site(), parts(position=Alibi)))
    assert isinstance(both, nn.Module)
    with torch.no_grad():
        both.gate_proj.weight.zero_()
        slopes = -torch.exp2(-2.0 * torch.arange(1, 5).double())
        both.gate_bias.copy_(slopes - torch.log(-torch.expm1(slopes)))  # log σ of it is the slope
    close(F.logsigmoid(both.gate_bias), slopes)
    x = torch.randn(2, 9, 32, dtype=torch.float64)
    q, k, v = both.project(x)
    distance = torch.arange(9.0).double()[:, None] - torch.arange(9.0).double()
    scores = q @ k.mT / 8**0.5 + 2 * slopes[:, None, None] * distance
    hidden = torch.ones(9, 9).triu(1).bool()
    want = both.output(scores.masked_fill(hidden, -math.inf).softmax(-1) @ v)
    close(both(x, ctx(tokens=9)).y, want, 1e-6)  # ALiBi's slopes are float32
    assert not torch.equal(want, alone(x, ctx(tokens=9)).y)
