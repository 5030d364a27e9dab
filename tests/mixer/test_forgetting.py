"""Forgetting attention against its equations."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from chimera.mixer.forgetting import Forgetting
from chimera.position.alibi import Alibi
from chimera.position.none import NoPosition
from tests.kit import close, ctx, double, grads, parts, site
from tests.mixer import forms


def build(position: Any = NoPosition, **options: Any) -> Forgetting:
    mixer = double(lambda: Forgetting(site(), parts(position=position), **options))
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
            if "bias" in mixer.position.provides:
                score = (
                    score + mixer.position.bias(*(torch.tensor([[n]]) for n in (i, j)))[..., 0, 0]
                )
            weights[:, :, i, j] = score.exp() * f[:, :, j + 1 : i + 1].prod(-1)
    o = weights / weights.sum(-1, keepdim=True) @ v
    return mixer.output(o)


class TestForms(forms.Forms):
    build, oracle = staticmethod(build), staticmethod(by_hand)
    options: ClassVar = [{}, {"kv_heads": 2}, {"position": Alibi}]
    constant, wide = False, False
    tokens = (17,)


def test_half_precision_keeps_the_sum_of_gates_wide() -> None:
    mixer = build().bfloat16()
    out = mixer(torch.randn(1, 9, 32).bfloat16(), ctx(tokens=9), mixer.init_state(1))
    assert out.state.total.dtype == torch.float32


def test_closed_gates_see_the_token_alone() -> None:
    mixer, x = build(), torch.randn(2, 9, 32, dtype=torch.float64)
    with torch.no_grad():
        mixer.gate_bias.fill_(-1e4)
    y = mixer(x, ctx(tokens=9)).y
    close(y, mixer.o_proj(mixer.v_proj(x)))
    assert all(g.isfinite().all() for g in grads(y.sum(), mixer))
