"""Gated feed-forward network with squared ReLU (`relu2_glu`; arXiv 2411.04965).

(a, b) = split(W_up x),   y = W_down (a ⊙ ReLU(b)²),   W_up: d → 2·expand·d,  W_down: expand·d → d

Most products are exactly zero, which BitNet a4.8 counts on for the input of its down projection.
`inner_norm: true` puts the model's norm before the down projection, as BitNet b1.58 2B4T does
(arXiv 2504.12285): squares and products of large values leave a wide range.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from chimera.contract import FFN, Context, Norm, Out, Parts, PositiveFloat, Site


class ReLU2GLU(FFN):
    """Feed-forward network with a squared ReLU as gate; one up projection for value and gate.

    Args:
        expand: width of the gated product as a multiple of d; the up projection is twice as wide.
        bias: biases in both layers (ignored by quantisers without biases).
        inner_norm: normalise the product before the down projection.
    """

    source = "arXiv 2411.04965, 2109.08668, 2002.05202"

    def __init__(
        self,
        site: Site,
        parts: Parts,
        *,
        expand: PositiveFloat = 4,
        bias: bool = False,
        inner_norm: bool = False,
    ) -> None:
        super().__init__()
        inner = round(expand * site.dim)
        self.up = parts.linear(site.dim, 2 * inner, bias=bias, role="up")
        self.down = parts.linear(inner, site.dim, bias=bias, role="down")
        self.norm: Norm | None = parts.norm(inner) if inner_norm else None

    def forward(self, x: Tensor, ctx: Context) -> Out:
        a, b = self.up(x).chunk(2, dim=-1)
        y = a * F.relu(b).square()
        if self.norm is not None:
            y = self.norm(y, ctx.mask)
        return Out(self.down(y))
