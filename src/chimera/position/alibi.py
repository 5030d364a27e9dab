"""ALiBi: a penalty on scores that grows with distance (SPEC `alibi`; SAIDL 2.3; arXiv 2108.12409).

    score_ij = q_i·k_j/√k − m_h |i − j|,    m_h = 2^(−8h/H),  h = 1 … H

Symmetric, so the same for encoders; in a decoder the future is masked and i ≥ j remains. No
parameters. The slopes are SAIDL's, for any H; where H is a power of two, ALiBi's own. [1|b h t s].
"""

from __future__ import annotations

from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from chimera.contract import Hook, Position, Site


class Alibi(Position):
    """Linear biases."""

    provides: ClassVar[frozenset[Hook]] = frozenset({"bias"})

    def __init__(self, site: Site, heads: int, head_dim: int) -> None:
        super().__init__(site, heads, head_dim)
        self.heads = heads

    def bias(
        self, pos_q: Int[Tensor, "#b t"], pos_k: Int[Tensor, "#b s"]
    ) -> Float[Tensor, "#b h t s"]:
        dtype = torch.get_default_dtype()
        rank = torch.arange(1, self.heads + 1, device=pos_q.device, dtype=dtype)
        apart = (pos_q[:, None, :, None] - pos_k[:, None, None, :]).abs()
        return -torch.exp2(-8 * rank / self.heads)[:, None, None] * apart
