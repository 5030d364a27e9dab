"""Low-rank adaptation of the principal singular directions (PiSSA, arXiv 2404.02948).

    y = W x + (α/r)·(B A − B₀ A₀) x,   W ≈ U S Vᵀ,   A₀ = √S_r·V_rᵀ/√(α/r),   B₀ = U_r·√S_r/√(α/r)

A and B begin as A₀ and B₀, the r largest singular directions of W. The paper subtracts B₀ A₀ from
the frozen weight; here W stays and B₀ A₀ is a constant of the update, which computes the same
function and gives the same gradients, and leaves the model's own weights as they were. It costs a
second product of rank r. A file has the update as a LoRA of rank 2r, which any reader adds to the
original weight. Of a quantised base the paper quantises the residual only; here W is quantised.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from chimera.adapter.shared.inject import inject
from chimera.adapter.shared.low_rank import LowRank, matrix
from chimera.contract import PositiveFloat, PositiveInt, ProperFraction


class PiSSA(LowRank):
    """Update (α/r)·(B A − B₀ A₀)."""

    peft_type = "PISSA"
    file_type = "LORA"
    A0: Tensor
    B0: Tensor

    def __init__(self, base: nn.Module, r: int, scale: float, dropout: float) -> None:
        super().__init__(base, r, scale, dropout)
        weight = matrix(base).detach().to(self.A.dtype)
        u, s, v = torch.linalg.svd(weight, full_matrices=False)
        # A matrix with fewer directions than r is filled up with zeros.
        root = F.pad((s[:r] / scale).sqrt(), (0, max(r - len(s), 0)))
        first = F.pad(v[:r], (0, 0, 0, max(r - len(v), 0))) * root[:, None]
        second = F.pad(u[:, :r], (0, max(r - u.shape[1], 0))) * root
        self.register_buffer("A0", first.contiguous())
        self.register_buffer("B0", second.contiguous())
        self.A = nn.Parameter(first.clone(memory_format=torch.contiguous_format))
        self.B = nn.Parameter(second.clone(memory_format=torch.contiguous_format))
        self.r = 2 * r  # rank of the whole update, and of a file

    def factors(self) -> tuple[Float[Tensor, "o r"], Float[Tensor, "r i"]]:
        b, a = super().factors()
        return torch.cat([b, -self.scale * self.B0], 1), torch.cat([a, self.A0])

    def forward(self, x: Float[Tensor, "*b i"]) -> Float[Tensor, "*b o"]:
        x = self._dropped(x)
        now, first = (
            F.linear(F.linear(x, a) * self.scale, b)
            for a, b in ((self.A, self.B), (self.A0, self.B0))
        )
        return now - first

    def tensors(self) -> dict[str, Tensor]:
        b, a = self.factors()
        return {"lora_A.weight": a.detach(), "lora_B.weight": b.detach() / self.scale}


def pissa(
    model: nn.Module,
    *,
    r: PositiveInt = 8,
    alpha: PositiveFloat = 8.0,
    dropout: ProperFraction = 0.0,
    targets: list[str] | None = None,
    train: list[str] | None = None,
) -> nn.Module:
    """PiSSA: low-rank update that begins with the largest singular directions of each layer.

    Args:
        model: frozen and changed in place.
        r: rank.
        alpha: α; the update is scaled by α/r, which is 1 in the paper.
        dropout: dropout probability of the update's input.
        targets: globs of linear layers; null for queries and values or their equivalents.
        train: globs of modules that are trained fully; null for a classifier's head.
    """
    return inject(model, lambda base: PiSSA(base, r, alpha / r, dropout), targets, train)
