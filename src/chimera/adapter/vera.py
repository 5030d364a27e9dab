"""Vector-based random matrix adaptation (VeRA, arXiv 2310.11454).

    y = W x + λ_b ⊙ B (λ_d ⊙ A x),   A [r i], B [o r] random, frozen, the same for all layers

Only λ_d [r] and λ_b [o] are trained: λ_d begins at `initial`, λ_b at 0. Layers of different widths
take the first rows and columns of one A and one B, which are as wide as the widest layer. Both are
drawn from `seed` (uniform of Kaiming) and are in no checkpoint. A file has the products as a LoRA,
which any reader loads.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from chimera.adapter.shared.inject import choose, inject
from chimera.adapter.shared.low_rank import LowRank, widths
from chimera.contract import NonNegativeInt, PositiveFloat, PositiveInt, ProperFraction
from chimera.ops.shards import whole


class VeRA(LowRank):
    """Update diag(λ_b) B diag(λ_d) A with random A and B.

    Args:
        base: adapted layer.
        r: rank.
        dropout: of the input.
        shared: A [r i] and B [o r] of all layers, on the CPU.
        initial: initial λ_d.
    """

    peft_type = "VERA"
    file_type = "LORA"

    def __init__(
        self,
        base: nn.Module,
        r: int,
        dropout: float,
        *,
        shared: tuple[Tensor, Tensor],
        initial: float,
    ) -> None:
        super().__init__(base, r, 1.0, dropout)
        a = shared[0][:, : self.A.shape[1]]
        b = shared[1][: self.B.shape[0]]
        del self.A, self.B
        self.register_buffer("A", a.to(**self.options).contiguous(), persistent=False)
        self.register_buffer("B", b.to(**self.options).contiguous(), persistent=False)
        self.lambda_d = nn.Parameter(torch.full((r,), float(initial), **self.options))
        self.lambda_b = nn.Parameter(torch.zeros(len(b), **self.options))

    def factors(self) -> tuple[Float[Tensor, "o r"], Float[Tensor, "r i"]]:
        return whole(self.lambda_b)[:, None] * self.B, whole(self.lambda_d)[:, None] * self.A

    def forward(self, x: Float[Tensor, "*b i"]) -> Float[Tensor, "*b o"]:
        low = self.lambda_d * F.linear(self._dropped(x), self.A)
        return self.lambda_b * F.linear(low, self.B)

    def tensors(self) -> dict[str, Tensor]:
        b, a = self.factors()
        return {"lora_A.weight": a.detach(), "lora_B.weight": b.detach()}


def projections(r: int, d_in: int, d_out: int, seed: int) -> tuple[Tensor, Tensor]:
    """A [r i] and B [o r], uniform with variance 2/columns, the same on every machine."""
    generator = torch.Generator(device="cpu").manual_seed(seed)

    def drawn(rows: int, columns: int) -> Tensor:
        bound = math.sqrt(6 / columns)
        x = torch.empty(rows, columns, device="cpu")
        return x.uniform_(-bound, bound, generator=generator)

    return drawn(r, d_in), drawn(d_out, r)


def vera(
    model: nn.Module,
    *,
    r: PositiveInt = 256,
    initial: PositiveFloat = 0.1,
    seed: NonNegativeInt = 0,
    dropout: ProperFraction = 0.0,
    targets: list[str] | None = None,
    train: list[str] | None = None,
) -> nn.Module:
    """VeRA: trained scales of one random low-rank pair that all layers share.

    Args:
        model: frozen and changed in place.
        r: rank.
        initial: initial λ_d.
        seed: of the random matrices.
        dropout: dropout probability of the update's input.
        targets: globs of linear layers; null for queries and values or their equivalents.
        train: globs of modules that are trained fully; null for a classifier's head.
    """
    sizes = [size for layer in choose(model, targets) if (size := widths(layer))]
    d_in, d_out = (max(column) for column in zip(*sizes, strict=True))
    shared = projections(r, d_in, d_out, seed)

    def make(base: nn.Module) -> VeRA:
        return VeRA(base, r, dropout, shared=shared, initial=initial)

    return inject(model, make, targets, train)
