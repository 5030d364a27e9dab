"""Gated feed-forward network with GELU (`geglu`; arXiv 2002.05202, eq. 5).

(a, b) = split(W_up x),   y = W_down (a ⊙ GELU(b)),   W_up: d → 2·expand·d,  W_down: expand·d → d

GELU is x·Φ(x) with the exact normal distribution function. T5 v1.1 and Gemma compute its tanh
approximation (largest difference 5e-4): `approximate: tanh`. ModernBERT has the exact one.
"""

from __future__ import annotations

from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from chimera.contract import Context, Parts, PositiveFloat, Site
from chimera.ffn.shared.two_layers import TwoLayer


class GEGLU(TwoLayer):
    """Feed-forward network with GELU gate; one up projection computes value and gate.

    Args:
        expand: width of the gated product as a multiple of d; the up projection is twice as wide.
        bias: biases in both layers (ignored by quantisers without biases).
        approximate: `none` for the exact GELU, `tanh` for its approximation.
    """

    source = "arXiv 2002.05202, 1606.08415"
    settings = ("approximate",)

    def __init__(
        self,
        site: Site,
        parts: Parts,
        *,
        expand: PositiveFloat = 4,
        bias: bool = False,
        approximate: Literal["none", "tanh"] = "none",
    ) -> None:
        inner = round(expand * site.dim)
        super().__init__(site, parts, 2 * inner, inner, bias=bias)
        self.approximate = approximate

    def activated(self, h: Tensor, ctx: Context) -> Tensor:
        a, b = h.chunk(2, dim=-1)
        return a * F.gelu(b, approximate=self.approximate)
