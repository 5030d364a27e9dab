"""Feed-forward network with squared ReLU, at the cost of SwiGLU (SPEC ffn `relu2`; QDYT 3.4).

(a₁, …, a_f) = split(W_up x),   y = W_down Σᵢ ReLU(aᵢ)²
W_up: d → expand·d,   W_down: expand·d/fold → d

QDYT gives the shape 8d → 4d → d at matched compute, but not the map from 8d to 4d. This code sums
the `fold` = 2 halves after the activation. Matrices then have the shapes of SwiGLU (8d² + 4d²
multiplications), and a sum replaces the product of the gate, so that the ablation isolates gating.
`fold: 1` is the usual form (arXiv 2109.08668): it costs 16d² with expand 8 (a third more than
SwiGLU) and 12d² with expand 6.
"""

from __future__ import annotations

import torch.nn.functional as F
from einops import reduce
from torch import Tensor

from chimera.contract import FFN, Context, Out, Parts, PositiveFloat, PositiveInt, Site
from chimera.contract_gguf import GGUF, in_gguf, joined


class ReLU2(FFN):
    """Feed-forward network with squared ReLU.

    Args:
        expand: width of the up projection as a multiple of d.
        fold: number of equal slices of the activation that are summed before the down projection.
        bias: biases in both layers (ignored by quantisers without biases).

    Raises:
        ValueError: `fold` does not divide the width of the up projection.
    """

    source = "QDYT 3.4; arXiv 2109.08668"

    def __init__(
        self,
        site: Site,
        parts: Parts,
        *,
        expand: PositiveFloat = 8,
        fold: PositiveInt = 2,
        bias: bool = False,
    ) -> None:
        super().__init__()
        inner = round(expand * site.dim)
        if inner % fold:
            raise ValueError(f"ffn fold={fold} does not divide the inner width {inner}")
        self.fold = fold
        self.up = parts.linear(site.dim, inner, bias=bias, role="up")
        self.down = parts.linear(inner // fold, site.dim, bias=bias, role="down")

    def forward(self, x: Tensor, ctx: Context) -> Out:
        y = F.relu(self.up(x)).square()
        if self.fold > 1:
            y = reduce(y, "b t (fold f) -> b t f", "sum", fold=self.fold)
        return Out(self.down(y))

    def gguf(self) -> GGUF:
        """As llama.cpp's network of two layers; a sum over slices is a repeated down projection."""
        up = in_gguf(self.up, "quant")
        down = in_gguf(self.down, "quant")
        return joined(
            {"ffn_up": up, "ffn_down": down.repeated(self.fold)},
            GGUF(
                keys={"feed_forward_length": self.up.weight.shape[0]},
                needs={"squared ReLU without a gate": frozenset({"arcee"})},
            ),
        )
