"""Rivals of the mixers in timings: quadratic forms by their definitions, and two packages.

All map [1 t d] to [1 t d], are causal, have no positions, and can be trained. The naive forms
compute all t × t scores and mask them, as their definitions say, without optimisation.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from chimera.ops.rotary import angles, frequencies, rotate


def peers(dim: int, heads: int, length: int) -> dict[str, nn.Module]:
    """Build all rivals, by name.

    Args:
        dim: width d.
        heads: number of heads.
        length: largest number of tokens.
    """
    from mambapy.mamba import MambaBlock, MambaConfig
    from xlstm.blocks.mlstm.layer import mLSTMLayer, mLSTMLayerConfig

    xlstm = mLSTMLayerConfig(embedding_dim=dim, num_heads=heads, context_length=length)
    return {
        "projections alone": Scores(dim, heads, lambda q, k, v: q + k + v),
        "torch SDPA": Scores(dim, heads, _fused),
        "naive softmax": Scores(dim, heads, _softmax),
        "naive linear": Scores(dim, heads, _linear),
        "naive retention": NaiveRetention(dim, heads // 2),  # `retnet` has half the heads too
        "mambapy": MambaBlock(MambaConfig(d_model=dim, n_layers=1)),
        "xlstm parallel": mLSTMLayer(xlstm),
    }


class Scores(nn.Module):
    """Four projections and a function of q, k, v [1 h t k] between them."""

    def __init__(
        self, dim: int, heads: int, mix: Callable[[Tensor, Tensor, Tensor], Tensor]
    ) -> None:
        super().__init__()
        self.heads, self.mix = heads, mix
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim, bias=False) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            rearrange(p(x), "b t (h k) -> b h t k", h=self.heads) for p in (self.q, self.k, self.v)
        )
        return self.o(rearrange(self.mix(q, k, v), "b h t k -> b t (h k)"))


class NaiveRetention(nn.Module):
    """RetNet's parallel form with the t × t matrix of decays (arXiv 2307.08621, eq. 5, 8)."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.g, self.o = (nn.Linear(dim, dim, bias=False) for _ in range(5))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            rearrange(p(x), "b t (h k) -> b h t k", h=self.heads) for p in (self.q, self.k, self.v)
        )
        pos = torch.arange(x.shape[1])
        turn = angles(pos[None], frequencies(q.shape[-1] // 2, 10000.0, like=q, inclusive=True))
        q, k = rotate(q, *turn), rotate(k * k.shape[-1] ** -0.5, *turn)
        gamma = 1 - torch.exp2(-5 - 7 * torch.arange(self.heads) / self.heads)
        distance = pos[:, None] - pos
        decay = (gamma[:, None, None] ** distance.clamp(min=0)).masked_fill(distance < 0, 0)
        y = F.rms_norm((q @ k.mT * decay) @ v, v.shape[-1:])
        return self.o(rearrange(y, "b h t k -> b t (h k)") * F.silu(self.g(x)))


def _fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def _softmax(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT * q.shape[-1] ** -0.5
    return scores.masked_fill(_future(scores), float("-inf")).softmax(-1) @ v


def _linear(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = (F.elu(q) + 1) @ (F.elu(k) + 1).mT
    scores = scores.masked_fill(_future(scores), 0)
    return (scores / scores.sum(-1, keepdim=True)) @ v


def _future(scores: Tensor) -> Tensor:
    return torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
