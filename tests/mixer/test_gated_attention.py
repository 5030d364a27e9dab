"""Gated attention against its equation, padded and decoded; transformers' layer: test_from_hf."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from chimera.mixer.gated_attention import GatedAttention
from tests.kit import close, continues, ctx, double, grads, parts, site

OPTIONS: list[dict[str, Any]] = [{}, {"kv_heads": 2, "head_dim": 16, "bias": True}]


def build(**options: Any) -> GatedAttention:
    mixer = double(lambda: GatedAttention(site(), parts(), **options))
    assert isinstance(mixer, GatedAttention)
    return mixer


def by_equation(mixer: GatedAttention, x: Tensor) -> Tensor:
    """A head and a token at a time."""
    h, g, k = mixer.heads.h, mixer.heads.g, mixer.head_dim
    layers = (mixer.q_proj, mixer.k_proj, mixer.v_proj, mixer.gate_proj)
    q, keys, values, gate = (layer(x).unflatten(-1, (-1, k)) for layer in layers)
    rows = []
    for row in range(len(x)):
        for t in range(x.shape[1]):
            heads = []
            for i in range(h):
                shared = i // (h // g)
                scores = keys[row, : t + 1, shared] @ q[row, t, i] / k**0.5
                read = scores.softmax(0) @ values[row, : t + 1, shared]
                heads.append(read * gate[row, t, i].sigmoid())
            rows.append(mixer.o_proj(torch.cat(heads)))
    return torch.stack(rows).view_as(x)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_it_is_its_equation(options: dict[str, Any]) -> None:
    mixer = build(**options)
    x = torch.randn(2, 7, 32).double().requires_grad_()
    got, want = mixer(x, ctx(tokens=7)).y, by_equation(mixer, x)
    close(got, want, 1e-10)
    weight, over = torch.randn_like(want), [x, *mixer.parameters()]
    close(grads((got * weight).sum(), over), grads((want * weight).sum(), over), 1e-10)


@pytest.mark.parametrize("left", [True, False])
def test_padded_prompts_go_on(left: bool) -> None:
    continues(build(**OPTIONS[1]), [5, 9, 2], 3, left=left)
