"""Embed → blocks × loops → norm: encoder and decoder from the same parts (TITAN eq. 16, Alg. 1).

z₁ = x + Mixer(Norm(x)),   z₂ = z₁ + FFN(Norm(z₁))                       (TITAN eq. 20, 21)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from chimera.contract import FFN, Ctx, Mixer, Norm, Out, Position, Site


class State(NamedTuple):
    """Decoding state of a model: real tokens seen [b], and a slot per logical layer."""

    seen: Int[Tensor, " b"]
    slots: tuple[Any, ...]


class Block(nn.Module):
    """Pre-norm residual block. `ffn` None leaves that branch out, its norm with it."""

    def __init__(self, site: Site, mixer: Mixer, ffn: FFN | None, norms: Sequence[Norm]) -> None:
        super().__init__()
        self.mixer_norm, self.mixer = norms[0], mixer
        self.ffn_norm: Norm | None = None if ffn is None else norms[1]
        self.ffn: FFN | None = ffn
        self.dropout = site.dropout

    def forward(self, x: Tensor, ctx: Ctx, state: Any = None) -> Out:
        mixed = self.mixer(_blank(self.mixer_norm(x, ctx.mask), ctx.mask), ctx, state)
        x = x + self._drop(mixed.y)
        if self.ffn is None or self.ffn_norm is None:
            return Out(x, mixed.state, mixed.aux, mixed.stats)
        fed = self.ffn(_blank(self.ffn_norm(x, ctx.mask), ctx.mask), ctx)
        return Out(x + self._drop(fed.y), mixed.state, mixed.aux | fed.aux, mixed.stats | fed.stats)

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training) if self.dropout else x


class EmbeddingScale(nn.Module):
    """A factor on the embeddings, fixed or learned (arXiv 2503.10622 for its use with DyT)."""

    component = "embedding"

    def __init__(self, scale: float, *, learned: bool) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(scale)) if learned else scale

    def forward(self, x: Float[Tensor, "b t d"]) -> Float[Tensor, "b t d"]:
        return x * self.scale


class Backbone(nn.Module):
    """The body of every model.

    Args:
        embedding: of tokens, [entries d].
        scale: of the embeddings, before positions are added; None leaves them.
        position: the position whose `embed` hook is used, once for the model.
        blocks: the physical layers.
        norm: the last one.
        loops: traversals of the blocks; logical layer loop·depth + layer has a state of its own.
        dropout: on the embeddings.
        gradient_checkpointing: recompute each block in the backward pass.
    """

    def __init__(
        self,
        embedding: nn.Module,
        scale: EmbeddingScale | None,
        position: Position,
        blocks: Sequence[Block],
        norm: Norm,
        *,
        loops: int = 1,
        dropout: float = 0.0,
        gradient_checkpointing: bool = False,
    ) -> None:
        super().__init__()
        self.embedding, self.scale = embedding, scale
        self.position, self.norm = position, norm
        self.blocks = nn.ModuleList(blocks)
        self.loops, self.dropout = loops, dropout
        self.gradient_checkpointing = gradient_checkpointing

    #: Read by classifiers: hidden states are pooled by their mean, there are no segments.
    summary, reads_segments = "mean", False

    @property
    def width(self) -> int:
        """Of the hidden states."""
        return int(cast(Tensor, self.embedding.weight).shape[-1])

    def init_state(self, batch: int) -> State:
        """A fresh state: given to `forward`, it makes the call a prefill."""
        device = next(self.parameters()).device
        mixers = [cast(Block, block).mixer for block in self.blocks] * self.loops
        fresh = (mixer.init_state(batch) for mixer in mixers)
        return State(torch.zeros(batch, dtype=torch.long, device=device), tuple(fresh))

    def forward(
        self,
        ids: Int[Tensor, "b t"],
        mask: Bool[Tensor, "b t"] | None = None,
        state: State | None = None,
    ) -> Out:
        """Hidden states [b t d] of token ids; aux and stats are means over the logical layers.

        Args:
            ids: token ids; any id at padding.
            mask: True where a token is real; None if all are.
            state: None in training; `init_state` to prefill; the returned one to continue.
        """
        pos = _positions(ids, mask, state)
        x = self.embedding(ids)
        x = self.position.embed(x if self.scale is None else self.scale(x), pos)
        x = F.dropout(x, self.dropout, self.training) if self.dropout else x
        outs: list[Out] = []
        for loop in range(self.loops):
            ctx = Ctx(pos, mask, loop)
            for block in self.blocks:
                slot = state.slots[len(outs)] if state is not None else None
                out = self._run(block, x, ctx, slot)
                outs.append(out)
                x = out.y
        new_state = None
        if state is not None:
            count = ids.shape[1] if mask is None else mask.sum(1)
            new_state = State(state.seen + count, tuple(out.state for out in outs))
        x = _blank(self.norm(x, mask), mask)
        return Out(x, new_state, _mean([o.aux for o in outs]), _mean([o.stats for o in outs]))

    def _run(self, block: nn.Module, x: Tensor, ctx: Ctx, slot: Any) -> Out:
        if self.gradient_checkpointing and torch.is_grad_enabled():
            return checkpoint(block, x, ctx, slot, use_reentrant=False)
        return block(x, ctx, slot)


def _positions(ids: Tensor, mask: Tensor | None, state: State | None) -> Tensor:
    """[b t] or [1 t]: index among the real tokens; padding repeats the position before it."""
    if mask is not None:
        pos = (mask.long().cumsum(1) - 1).clamp(min=0)
    else:
        pos = torch.arange(ids.shape[1], device=ids.device)[None]
    return pos if state is None else pos + state.seen[:, None]


def _blank(x: Float[Tensor, "b t d"], mask: Bool[Tensor, "b t"] | None) -> Float[Tensor, "b t d"]:
    """Zeros at padding, so that no statistic of a layer above sees it."""
    return x if mask is None else x.masked_fill(~mask[..., None], 0.0)


def _mean(of: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Means by key over the layers that report the key."""
    keys = dict.fromkeys(key for one in of for key in one)
    return {key: torch.stack([one[key] for one in of if key in one]).mean() for key in keys}
