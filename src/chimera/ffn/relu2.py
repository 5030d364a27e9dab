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

from chimera.contract import Context, Parts, PositiveFloat, PositiveInt, Site
from chimera.contract_gguf import GGUF, in_gguf, joined
from chimera.ffn.shared.two_layers import TwoLayer


class ReLU2(TwoLayer):
    """Feed-forward network with squared ReLU.

    Args:
        expand: width of the up projection as a multiple of d.
        fold: number of equal slices of the activation that are summed before the down projection.
        bias: biases in both layers (ignored by quantisers without biases).

    Raises:
        ValueError: `fold` does not divide the width of the up projection.
    """

    source = "QDYT 3.4; arXiv 2109.08668"
    settings = ("fold",)

    def __init__(
        self,
        site: Site,
        parts: Parts,
        *,
        expand: PositiveFloat = 8,
        fold: PositiveInt = 2,
        bias: bool = False,
    ) -> None:
        inner = round(expand * site.dim)
        if inner % fold:
            raise ValueError(f"ffn fold={fold} does not divide the inner width {inner}")
        super().__init__(site, parts, inner, inner // fold, bias=bias)
        self.fold = fold

    def activated(self, h: Tensor, ctx: Context) -> Tensor:
        y = F.relu(h).square()
        return reduce(y, "b t (fold f) -> b t f", "sum", fold=self.fold) if self.fold > 1 else y

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
