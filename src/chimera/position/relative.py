"""Learned bias of scores by relative position (SPEC `relative`; SAIDL 2.3; after arXiv 1803.02155).

    score_ij = q_i·k_j/√k + b[h, clip(i − j, −R, R)]

2R + 1 numbers per head; distances beyond R share the number of R or −R. A decoder trains only the
half with i ≥ j. Bias [1|b h t s].
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
    """Learned bias of scores per head and clipped distance.

    Args:
        max_distance: R, in tokens.
        init_std: standard deviation of the initial biases.
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
        distance = (pos_q[:, :, None] - pos_k[:, None, :]).clamp(-r, r)
        return rearrange(F.embedding(distance + r, self.biases), "b t s h -> b h t s")
