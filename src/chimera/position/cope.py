"""CoPE: a bias of scores by a position that counts tokens by content (arXiv 2405.18719).

    g_ij = σ(q_i·k_j/√k),   p_ij = min(Σ_{l = j … i} g_il, P),   score_ij = q_i·(k_j + e[p_ij])/√k

e has P + 1 vectors, shared by all heads, and is linear between whole numbers; `ops.contextual`
has the details. An encoder counts the tokens between j and i in either direction. The paper's
equations leave out 1/√k; here every product with q has it, as attention does. Only mixers with the
scores of all tokens at hand can use it. Bias [b h t s].
"""

from __future__ import annotations

from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from chimera.contract import Hook, NonNegativeFloat, Position, PositiveInt, Site
from chimera.ops.contextual import contextual_bias


class Cope(Position):
    """Bias of scores by a position that counts tokens by what they hold (CoPE).

    Args:
        longest: P, in counted tokens.
        init_std: standard deviation of the initial vectors; 0 as the authors' code.
    """

    provides: ClassVar[frozenset[Hook]] = frozenset({"content"})

    def __init__(
        self,
        site: Site,
        heads: int,
        head_dim: int,
        *,
        longest: PositiveInt = 64,
        init_std: NonNegativeFloat = 0.0,
    ) -> None:
        super().__init__(site, heads, head_dim)
        self.causal = site.causal
        self.vectors = nn.Parameter(torch.randn(longest + 1, head_dim) * init_std)

    def content(
        self,
        q: Float[Tensor, "b h t k"],
        k: Float[Tensor, "b g s k"],
        visible: Bool[Tensor, "#b 1 t s"] | None,
    ) -> Float[Tensor, "b h t s"]:
        scores = contextual_bias(q, k, self.vectors, visible, causal=self.causal)
        return scores.to(q.dtype)
