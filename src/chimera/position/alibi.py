"""ALiBi: penalty of scores, linear in distance (SPEC `alibi`; SAIDL 2.3; arXiv 2108.12409).

    score_ij = q_i·k_j/√k − m_h |i − j|,    m_h = 2^(−8h/H),  h = 1 … H

The bias is symmetric and serves encoders and decoders (which mask j > i). No parameters. The slopes
are SAIDL's, for any H; they equal ALiBi's if H is a power of two. Bias [1|b h t s].
"""

from __future__ import annotations

from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from chimera.contract import Hook, Position, Site


class Alibi(Position):
    """Bias of scores that decreases linearly with distance (ALiBi)."""

    provides: ClassVar[frozenset[Hook]] = frozenset({"bias"})

    def __init__(self, site: Site, heads: int, head_dim: int) -> None:
        super().__init__(site, heads, head_dim)
        self.heads = heads

    def bias(
        self, pos_q: Int[Tensor, "#b t"], pos_k: Int[Tensor, "#b s"]
    ) -> Float[Tensor, "#b h t s"]:
        dtype = torch.get_default_dtype()
        rank = torch.arange(1, self.heads + 1, device=pos_q.device, dtype=dtype)
        distance = (pos_q[:, None, :, None] - pos_k[:, None, None, :]).abs()
        return -torch.exp2(-8 * rank / self.heads)[:, None, None] * distance
