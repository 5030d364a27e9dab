"""Gated feed-forward network with squared ReLU (`relu2_glu`; arXiv 2411.04965).

(a, b) = split(W_up x),   y = W_down (a ⊙ ReLU(b)²),   W_up: d → 2·expand·d,  W_down: expand·d → d

Most products are exactly zero, which BitNet a4.8 counts on for the input of its down projection.
`inner_norm: true` puts the model's norm before the down projection, as BitNet b1.58 2B4T does
(arXiv 2504.12285): squares and products of large values leave a wide range.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from chimera.contract import Context, Norm, Parts, PositiveFloat, Site
from chimera.ffn.shared.two_layers import TwoLayer


class ReLU2GLU(TwoLayer):
    """Feed-forward network with a squared ReLU as gate; one up projection for value and gate.

    Args:
        expand: width of the gated product as a multiple of d; the up projection is twice as wide.
        bias: biases in both layers (ignored by quantisers without biases).
        inner_norm: normalise the product before the down projection.
    """

    source = "arXiv 2411.04965, 2109.08668, 2002.05202"
    settings = ("norm",)

    def __init__(
        self,
        site: Site,
        parts: Parts,
        *,
        expand: PositiveFloat = 4,
        bias: bool = False,
        inner_norm: bool = False,
    ) -> None:
        inner = round(expand * site.dim)
        super().__init__(site, parts, 2 * inner, inner, bias=bias)
        self.norm: Norm | None = parts.norm(inner) if inner_norm else None

    def activated(self, h: Tensor, ctx: Context) -> Tensor:
        a, b = h.chunk(2, dim=-1)
        y = a * F.relu(b).square()
        return y if self.norm is None else self.norm(y, ctx.mask)
