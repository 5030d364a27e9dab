"""Linear attention against its definition, in all three forms (SPEC M5)."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from chimera.mixer.linear import LinearAttention
from chimera.position.hope import Hope
from chimera.position.rope import Rotary
from tests.kit import double, parts, site
from tests.mixer import forms


def build(causal: bool = True, position: Any = None, **options: Any) -> Any:
    chosen = parts() if position is None else parts(position=position)
    return double(lambda: LinearAttention(site(causal=causal), chosen, **options))


def heads(x: Tensor) -> Tensor:
    return x.unflatten(-1, (4, -1)).transpose(1, 2)


def by_pairs(m: Any, x: Tensor) -> Tensor:
    """A weighted mean; positions turn the numerator only (RoFormer eq. 19)."""
    q, k = F.elu(heads(m.q_proj(x))) + 1, F.elu(heads(m.k_proj(x))) + 1
    below, pos = q @ k.mT, torch.arange(x.shape[1])[None]
    above = torch.matmul(*(y.mT if i else y for i, y in enumerate(m.position.rotate(q, k, pos))))
    if "rotate" in m.position.provides:
        q, k = m.position.rotate(q, k, 0 * pos)
        below = q @ k.mT
    if m.causal:
        above, below = above.tril(), below.tril()
    o = above @ heads(m.v_proj(x)) / below.sum(-1, keepdim=True)
    return m.o_proj(o.transpose(1, 2).flatten(2))


class TestForms(forms.Forms):
    build, oracle = staticmethod(build), staticmethod(by_pairs)
    options: ClassVar = [
        {"form": "parallel"},
        {"chunk_size": 5},
        {"chunk_size": 24, "position": Rotary},
        {"position": Hope},
    ]
    encoders = True
    tol = 1e-9
