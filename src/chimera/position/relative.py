"""Relative positions as a learned bias (SPEC `relative`; SAIDL 2.3; after arXiv 1803.02155).

    score_ij = q_i·k_j/√k + b[h, clip(i − j, −R, R)]

2R + 1 numbers per head; all distances beyond R share the last one on their side. A decoder sees
i ≥ j only and learns that half. [1|b h t s].
"""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from chimera.contract import Hook, NonNegativeFloat, Position, PositiveInt, Site


class Relative(Position):
    """A learned bias per head and clipped distance.

    Args:
        max_distance: R.
        init_std: of the biases at the start.
    """

    provides: ClassVar[frozenset[Hook]] = frozenset({"bias"})

    def __init__(
        self,
        site: Site,
        heads: int,
        head_dim: int,
        *,
        max_distance: PositiveInt = 128,
        init_std: NonNegativeFloat = 0.02,
    ) -> None:
        super().__init__(site, heads, head_dim)
        self.max_distance = max_distance
        self.biases = nn.Parameter(torch.randn(2 * max_distance + 1, heads) * init_std)

    def bias(
        self, pos_q: Int[Tensor, "#b t"], pos_k: Int[Tensor, "#b s"]
    ) -> Float[Tensor, "#b h t s"]:
        r = self.max_distance
        apart = (pos_q[:, :, None] - pos_k[:, None, :]).clamp(-r, r)
        return rearrange(F.embedding(apart + r, self.biases), "b t s h -> b h t s")
