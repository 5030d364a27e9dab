"""Block-diagonal linear layer and LayerNorm per head (arXiv 2405.04517; SPEC M13).

y_n = W_n x_n             n = 1 … blocks: one block-diagonal matrix
y_n = γ_n ⊙ LayerNorm(x_n)
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from chimera.contract import Role
from chimera.ops.precision import widen


class HeadwiseLinear(nn.Module):
    """Block-diagonal linear layer without bias: `blocks` times [i/blocks] to [o/blocks].

    Never quantised: xLSTM's 4 × 4 blocks have 1 % of the weights of a dense layer, too few for a
    separate scale. Adapters can wrap it like any linear layer. ValueError if `blocks` does not
    divide both widths.
    """

    def __init__(self, d_in: int, d_out: int, blocks: int, *, role: Role) -> None:
        super().__init__()
        if d_in % blocks or d_out % blocks:
            raise ValueError(f"{blocks} blocks do not divide the widths {d_in} and {d_out}")
        self.in_features = d_in
        self.out_features = d_out
        self.role = role
        self.weight = nn.Parameter(torch.empty(blocks, d_out // blocks, d_in // blocks))
        nn.init.normal_(self.weight, std=math.sqrt(2 / (5 * d_in)))

    def forward(self, x: Float[Tensor, "*b i"]) -> Float[Tensor, "*b o"]:
        heads = rearrange(x, "... (n i) -> n (...) i", n=len(self.weight))
        y = rearrange(torch.bmm(heads, self.weight.mT), "n b o -> b (n o)")
        return y.view(*x.shape[:-1], self.out_features)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, blocks={len(self.weight)}"


class HeadNorm(nn.Module):
    """LayerNorm of each head (a group norm), with scale, without shift: [b h t v] to [b t h·v].

    The result is in float32 or wider.
    """

    component = "norm"

    def __init__(self, heads: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(heads, width))

    def forward(self, x: Float[Tensor, "b h t v"]) -> Float[Tensor, "b t d"]:
        x = rearrange(widen(x), "b h t v -> b t h v")
        return (F.layer_norm(x, x.shape[-1:], eps=1e-5) * self.weight).flatten(2)
