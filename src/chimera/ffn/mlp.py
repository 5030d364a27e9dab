"""Feed-forward network of two linear layers with GELU (SPEC ffn `mlp`; TITAN eq. 41).

y = W_down GELU(W_up x),   W_up: d → expand·d
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from chimera.contract import Context, Parts, PositiveFloat, Site
from chimera.ffn.shared.two_layers import TwoLayer


class MLP(TwoLayer):
    """Feed-forward network with GELU.

    Args:
        expand: inner width as a multiple of d (4 in BERT, 2 in TITAN Table 1).
        bias: biases in both layers (ignored by quantisers without biases).
    """

    source = "TITAN eq. 41; arXiv 1706.03762, 1606.08415"
    settings = ()

    def __init__(
        self, site: Site, parts: Parts, *, expand: PositiveFloat = 4.0, bias: bool = False
    ) -> None:
        inner = round(expand * site.dim)
        super().__init__(site, parts, inner, inner, bias=bias)

    def activated(self, h: Tensor, ctx: Context) -> Tensor:
        return F.gelu(h)
