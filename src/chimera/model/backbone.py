"""Backbone of encoders and decoders: embedding, blocks × loops, norm (TITAN eq. 16, Alg. 1).

`model.block` has the equations of a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from chimera.contract import Context, Mixer, Norm, Out, Position
from chimera.errors import UserError
from chimera.model.block import Block as Block
from chimera.model.block import blank
from chimera.ops.dropout import dropout, fork, label, token_keys

EMBEDDING = label("embedding")


class State(NamedTuple):
    """Decoding state of a model.

    Args:
        seen: real tokens so far, [b].
        slots: a state per logical layer.
        length: tokens so far with padding, an upper bound of `seen` that is known on the host.
    """

    seen: Int[Tensor, " b"]
    slots: tuple[Any, ...]
    length: int = 0


class EmbeddingScale(nn.Module):
    """Constant or learned factor of the embeddings (arXiv 2503.10622 uses it with DyT)."""

    component = "embedding"

    def __init__(self, scale: float, *, learned: bool) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([scale])) if learned else scale

    def forward(self, x: Float[Tensor, "b t d"]) -> Float[Tensor, "b t d"]:
        return x * self.scale


class Trunk(nn.Module):
    """Token ids to hidden states by modules that a subclass sets.

    `Backbone` is one. The exported model of the transformers library is another: its base class has
    a constructor and a `forward` of its own.
    """

    embedding: nn.Module
    scale: EmbeddingScale | None
    position: Position
    embedding_norm: Norm | None
    blocks: nn.ModuleList
    norm: Norm
    loops: int
    dropout: float
    gradient_checkpointing: bool
    _limited: list[Mixer | Position]

    #: For classifiers: pooling by the mean, no segment ids.
    summary = "mean"
    reads_segments = False

    @property
    def width(self) -> int:
        """Width d of the hidden states."""
        return int(cast(Tensor, self.embedding.weight).shape[-1])

    def init_state(self, batch: int) -> State:
        """Empty state for `batch` sequences; `hidden` with this state is a prefill."""
        device = next(self.parameters()).device
        mixers = [cast(Block, block).mixer for block in self.blocks] * self.loops
        states = (mixer.init_state(batch) for mixer in mixers)
        return State(torch.zeros(batch, dtype=torch.long, device=device), tuple(states))

    def hidden(
        self,
        ids: Int[Tensor, "b t"],
        mask: Bool[Tensor, "b t"] | None = None,
        state: State | None = None,
        draws: Int[Tensor, " b"] | None = None,
        documents: Int[Tensor, "b t"] | None = None,
    ) -> Out:
        """Hidden states [b t d] of token ids; aux and stats are means over the logical layers.

        Args:
            ids: token ids; any id at padding.
            mask: True for real tokens; None if there is no padding.
            state: None in training; `init_state` for a prefill; the returned state to continue.
            draws: keys of the samples' dropout (`ops.dropout.sample_keys`); None: torch draws.
            documents: number of each token's document in its row, to keep documents apart in
                training; positions begin at 0 in each. Only for mixers with `documents`.
        """
        pos = _positions(ids, mask, state)
        keys = token_keys(draws, pos) if draws is not None and self.training else None
        pos = pos if documents is None else _in_documents(pos, documents)
        self._check_length(pos, ids.shape[1] + (0 if state is None else state.length))
        x = self.embedding(ids)
        x = self.position.embed(x if self.scale is None else self.scale(x), pos)
        x = x if self.embedding_norm is None else self.embedding_norm(blank(x, mask), mask)
        x = dropout(x, self.dropout, self.training, keys, EMBEDDING)
        outs: list[Out] = []
        first = Context(pos, mask, 0, keys, documents)
        for loop in range(self.loops):
            ctx = replace(first, loop=loop)  # with the same memo
            for block in self.blocks:
                slot = state.slots[len(outs)] if state is not None else None
                out = self._run(block, x, ctx, slot)
                outs.append(out)
                x = out.y
        new_state = None
        if state is not None:
            count = ids.shape[1] if mask is None else mask.sum(1)
            slots = tuple(out.state for out in outs)
            new_state = State(state.seen + count, slots, state.length + ids.shape[1])
        x = blank(self.norm(x, mask), mask)
        return Out(x, new_state, _mean([o.aux for o in outs]), _mean([o.stats for o in outs]))

    def check_positions(self, length: int) -> None:
        """Check that the tables of limited length suffice; also on the meta device.

        Args:
            length: positions of a sequence.

        Raises:
            UserError: from the part whose table is too short.
        """
        for part in self._limited:
            assert part.max_positions is not None
            if length > part.max_positions:
                raise UserError(part.too_long(length))

    def _check_length(self, pos: Tensor, bound: int) -> None:
        """Check positions against tables of limited length, once per batch.

        The bound is known without the device. Only above it are the positions themselves fetched:
        padding counts in the bound.

        Raises:
            UserError: from the part whose table is too short.
        """
        for part in self._limited:
            assert part.max_positions is not None
            if bound > part.max_positions:
                positions = bound if pos.is_meta else int(pos.max()) + 1
                if positions > part.max_positions:
                    raise UserError(part.too_long(positions))

    def _run(self, block: nn.Module, x: Tensor, ctx: Context, slot: Any) -> Out:
        # Not in the block: one that reads its index has a graph of torch.compile of its own.
        ctx = fork(ctx, cast(Block, block).site.logical(ctx.loop))
        if self.gradient_checkpointing and torch.is_grad_enabled():
            return checkpoint(block, x, ctx, slot, use_reentrant=False)
        return block(x, ctx, slot)


class Backbone(Trunk):
    """Token ids to hidden states.

    Args:
        embedding: token embedding, [entries d].
        scale: factor of the embeddings before positions are added; None for 1.
        position: position encoding, of which only the hook `embed` is called here.
        blocks: physical layers.
        norm: final norm.
        loops: traversals of the blocks; each logical layer loop·depth + layer has its own state.
        dropout: dropout probability of the embeddings.
        gradient_checkpointing: recompute each block in the backward pass.
        embedding_norm: norm of the embeddings and their positions; None for none.
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
        embedding_norm: Norm | None = None,
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.scale = scale
        self.position = position
        self.norm = norm
        self.embedding_norm = embedding_norm
        self.blocks = nn.ModuleList(blocks)
        self.loops = loops
        self.dropout = dropout
        self.gradient_checkpointing = gradient_checkpointing
        parts = (m for m in self.modules() if isinstance(m, (Mixer, Position)))
        self._limited = [part for part in parts if part.max_positions is not None]

    forward = Trunk.hidden


def _positions(ids: Tensor, mask: Tensor | None, state: State | None) -> Tensor:
    """Positions [b t] or [1 t]: index among the real tokens; padding repeats the last position."""
    if mask is not None:
        pos = (mask.long().cumsum(1) - 1).clamp(min=0)
    else:
        pos = torch.arange(ids.shape[1], device=ids.device)[None]
    return pos if state is None else pos + state.seen[:, None]


def _in_documents(pos: Int[Tensor, "#b t"], documents: Int[Tensor, "b t"]) -> Tensor:
    """Positions [b t] in each document of a packed row."""
    begins = torch.ones_like(documents, dtype=torch.bool)
    begins[:, 1:] = documents[:, 1:] != documents[:, :-1]
    return pos - pos.expand_as(documents).masked_fill(~begins, 0).cummax(1).values


def _mean(layers: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Mean of each key over the layers that have it."""
    keys = dict.fromkeys(key for values in layers for key in values)
    return {
        key: torch.stack([values[key] for values in layers if key in values]).mean() for key in keys
    }
