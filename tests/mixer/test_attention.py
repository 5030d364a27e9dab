"""Softmax attention with grouped heads and positions against its definition (SPEC M1, M2).

`tests/model/test_from_hf.py` holds it against Llama and Qwen of `transformers`.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor

from chimera.mixer.attention import Attention
from chimera.position.alibi import Alibi
from chimera.position.relative import Relative
from chimera.position.rope import Rotary
from tests.kit import double, parts, site
from tests.mixer import forms


def build(causal: bool = True, position: Any = None, **options: Any) -> Attention:
    chosen = parts(position=position) if position else parts()
    return double(lambda: Attention(site(causal=causal), chosen, **options))


def by_scores(m: Attention, x: Tensor) -> Tensor:
    """softmax(q kᵀ/√k + bias) v; neighbouring query heads share a key head."""
    pos = torch.arange(x.shape[1])[None]
    q, k, v = (p(x).unflatten(-1, (-1, 8)).transpose(1, 2) for p in (m.q_proj, m.k_proj, m.v_proj))
    q, k = m.position.rotate(q, k, pos)
    k, v = (y.repeat_interleave(4 // y.shape[1], 1) for y in (k, v))
    scores = q @ k.mT / 8**0.5
    if "bias" in m.position.provides:
        scores = scores + m.position.bias(pos, pos)
    if m.causal:
        scores = scores.masked_fill(torch.ones(*scores.shape[-2:]).triu(1).bool(), -math.inf)
    return m.o_proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class TestForms(forms.Forms):
    build, oracle = staticmethod(build), staticmethod(by_scores)
    options: ClassVar = [
        {},
        {"kv_heads": 2, "position": Rotary},
        {"kv_heads": 1, "position": Alibi},
        {"position": Relative},
    ]
    encoders, constant, wide, tokens = True, False, False, (17,)
