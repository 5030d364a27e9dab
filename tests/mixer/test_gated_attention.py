"""Gated attention against its equation, padded and decoded; transformers' layer: test_from_hf."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from chimera.mixer.gated_attention import GatedAttention
from tests.kit import double, parts, site
from tests.mixer import forms

OPTIONS: list[dict[str, Any]] = [{}, {"kv_heads": 2, "head_dim": 16, "bias": True}]


def build(**options: Any) -> GatedAttention:
    return double(lambda: GatedAttention(site(), parts(), **options))


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


class TestForms(forms.Forms):
    build, oracle = staticmethod(build), staticmethod(by_equation)
    options = OPTIONS
    constant, wide = False, False
    tokens = (9,)
