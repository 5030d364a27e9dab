"""Add a learned vector per position to the embedding (SPEC `learned`; SAIDL 2.3; BERT, GPT-2).

    x_p ← x_p + E_p,    E [max_len d]

Positions from max_len on are an error; the model raises it, once per batch. [b t d] to [b t d].
"""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from chimera.contract import Hook, NonNegativeFloat, Position, Site


class Learned(Position):
    """Learned vector per absolute position, added to the embedding.

    Args:
        init_std: standard deviation of the initial vectors.
    """

    component = "embedding"
    provides: ClassVar[frozenset[Hook]] = frozenset({"embed"})

    def __init__(
        self, site: Site, heads: int, head_dim: int, *, init_std: NonNegativeFloat = 0.02
    ) -> None:
        super().__init__(site, heads, head_dim)
        self.max_positions: int = site.max_len
        self.vectors = nn.Parameter(torch.empty(site.max_len, site.dim))
        nn.init.normal_(self.vectors, std=init_std)

    def too_long(self, positions: int) -> str:
        return (
            f"position=learned has max_len={self.max_positions} positions, but the sequence has"
            f" {positions}; raise model.max_len or use sinusoidal, rope, alibi, relative, hope or"
            " none"
        )

    def embed(self, x: Float[Tensor, "b t d"], pos: Int[Tensor, "#b t"]) -> Tensor:
        return x + F.embedding(pos, self.vectors).to(x.dtype)
