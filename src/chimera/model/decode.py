"""Decode token by token with the state of the model.

One pass over the left-padded prompts gives the state; each further token is one pass over one
position. The cost of a token is constant for recurrent mixers; for attention it grows only by
reading the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor


def pad_left(rows: Sequence[Sequence[int]], pad_id: int) -> tuple[Tensor, Tensor | None]:
    """Pad rows on the left to ids [b t], and the mask [b t]; the mask is None without padding."""
    width = max(map(len, rows))
    ids = torch.tensor([[pad_id] * (width - len(row)) + list(row) for row in rows])
    if min(map(len, rows)) == width:
        return ids, None
    starts = torch.tensor([width - len(row) for row in rows])
    return ids, torch.arange(width) >= starts[:, None]


@torch.no_grad()
def decode(
    model: Any,
    prompts: Sequence[Sequence[int]],
    choose: Callable[[Tensor], Tensor],
    *,
    max_new: int,
    pad_id: int,
    end_id: int | None,
) -> Iterator[Int[Tensor, " b"]]:
    """Yield the next token of every sequence until all sequences have ended.

    Args:
        model: causal model in evaluation mode with enough positions (see `check_length`).
        prompts: token ids, at least one per prompt.
        choose: function of logits [b v] to ids [b].
        max_new: maximal number of tokens of a continuation.
        pad_id: id for padding of prompts.
        end_id: id that ends a sequence; repeated until all sequences have ended.
    """
    device = next(model.parameters()).device
    ids, mask = pad_left(prompts, pad_id)
    ended = torch.zeros(len(prompts), dtype=torch.bool, device=device)
    last = torch.arange(1, len(prompts) + 1, device=device) * ids.shape[1] - 1
    out = model(
        ids.to(device),
        None if mask is None else mask.to(device),
        index=last,
        state=model.init_state(len(prompts)),
    )
    for step in range(max_new):
        token = choose(out.logits.flatten(0, -2))
        if end_id is not None:
            token = token.masked_fill(ended, end_id)
            ended |= token == end_id
        yield token
        if bool(ended.all()) or step + 1 == max_new:
            return
        out = model(token[:, None], state=out.state)


def greedy(
    model: Any, prompts: Sequence[Sequence[int]], *, max_new: int, pad_id: int, end_id: int | None
) -> list[list[int]]:
    """Most likely continuation of each prompt, up to the end token; arguments as of `decode`."""
    tokens = decode(
        model,
        prompts,
        lambda logits: logits.argmax(-1),
        max_new=max_new,
        pad_id=pad_id,
        end_id=end_id,
    )
    rows = torch.stack(list(tokens), 1).tolist()
    return [row[: row.index(end_id)] if end_id in row else row for row in rows]
