"""Norm of queries and keys, in front of any position (`model.qk_norm`; arXiv 2302.05442).

    q ← γ_q ⊙ q/√(mean q² + ε),   k ← γ_k ⊙ k/√(mean k² + ε),   then the position's rotation

The mean is over a head's channels; heads of a layer share γ (Qwen3, Gemma 3). OLMo 2 takes the mean
over all heads, and ViT-22B LayerNorm. It is a position that wraps another one, so that every mixer
that rotates queries and keys has it, and those that do not are refused. A mixer that rotates only
some channels (mla) has it for these. q [b h t k], k [b g t k].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from chimera.contract import Hook, Position, Site
from chimera.ops.precision import widen
from chimera.position.shared.wrapping import Wrapping

EPS = 1e-6


class QKNorm(Wrapping):
    """RMSNorm of queries and keys, then another position.

    Args:
        site, heads, head_dim: see `Position`.
        position: factory of the other position.
    """

    component = "norm"
    provides: ClassVar[frozenset[Hook]] = frozenset({"rotate"})

    def __init__(
        self, site: Site, heads: int, head_dim: int, *, position: Callable[..., Position]
    ) -> None:
        super().__init__(site, heads, head_dim)
        inner = position(site, heads, head_dim)
        self.wrap(inner, inner.provides | {"rotate"})
        self.q_weight = nn.Parameter(torch.ones(head_dim))
        self.k_weight = nn.Parameter(torch.ones(head_dim))

    def rotate(
        self, q: Float[Tensor, "b h t k"], k: Float[Tensor, "b g t k"], pos: Int[Tensor, "#b t"]
    ) -> tuple[Tensor, Tensor]:
        q = _normed(q, self.q_weight)
        k = _normed(k, self.k_weight)
        return self.here.rotate(q, k, pos)


def _normed(x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(widen(x), weight.shape, widen(weight), EPS).to(x.dtype)
