"""FIRE: a bias of scores by an MLP of the distance relative to the position (arXiv 2310.04418).

    b_h(i, j) = f_h(ψ(i − j) / ψ(max(L, i))),   ψ(x) = ln(1 + c·x)                       (eq. 19)

f is an MLP 1 → hidden → h with ReLU; c > 0 and the threshold L > 0 are learned. The ratio is within
[0, 1] for every length of text. An encoder has |i − j| and max(i, j), which is i where j ≤ i.
A hidden layer has t·s·hidden numbers: of many pairs it is computed in blocks of queries, and again
in the backward pass. Bias [1|b h t s].
"""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from chimera.contract import Hook, Position, PositiveFloat, PositiveInt, Site
from chimera.ops.precision import autocast_off

EPS = 1e-6  # of ψ(max(L, i)), which is 0 where c is
PAIRS = 2**22  # of tokens whose hidden layers are in memory at a time


class Fire(Position):
    """Bias of scores by an MLP of the distance relative to the query's position (FIRE).

    Args:
        hidden: width of the MLP.
        scale: initial c.
        threshold: initial L, in tokens; null for the model's max_len.
    """

    undecayed = ("scale", "threshold")
    provides: ClassVar[frozenset[Hook]] = frozenset({"bias"})

    def __init__(
        self,
        site: Site,
        heads: int,
        head_dim: int,
        *,
        hidden: PositiveInt = 32,
        scale: PositiveFloat = 0.1,
        threshold: PositiveFloat | None = 512.0,
    ) -> None:
        super().__init__(site, heads, head_dim)
        self.scale = nn.Parameter(torch.full((1,), float(scale)))
        self.threshold = nn.Parameter(torch.full((1,), float(threshold or site.max_len)))
        self.up = nn.Linear(1, hidden)
        self.down = nn.Linear(hidden, heads)

    def bias(
        self, pos_q: Int[Tensor, "#b t"], pos_k: Int[Tensor, "#b s"]
    ) -> Float[Tensor, "#b h t s"]:
        q = pos_q[:, :, None].to(self.scale.dtype)
        k = pos_k[:, None, :].to(self.scale.dtype)
        c = self.scale.abs()
        furthest = torch.maximum(q, k)
        longest = torch.maximum(furthest, self.threshold.abs())
        share = torch.log1p(c * (q - k).abs()) / (torch.log1p(c * longest) + EPS)
        rows = max(1, PAIRS // (share.shape[0] * share.shape[2]))
        with autocast_off(share):
            if share.shape[1] <= rows:
                return self._mlp(share)
            blocks = [checkpoint(self._mlp, p, use_reentrant=False) for p in share.split(rows, 1)]
            return torch.cat(blocks, 2)

    def _mlp(self, share: Float[Tensor, "b t s"]) -> Float[Tensor, "b h t s"]:
        scores: Tensor = self.down(F.relu(self.up(share[..., None])))
        return scores.movedim(-1, 1)
