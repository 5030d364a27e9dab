"""Decode token by token, each mixer with its own state.

The prompts are padded on the left and read in one pass, which leaves a state; every token after
that is one pass over one position. Its cost does not grow with the text for recurrent mixers, and
for attention only by reading the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor


def pad_left(rows: Sequence[Sequence[int]], pad_id: int) -> tuple[Tensor, Tensor | None]:
    """Ids [b t] of the longest row's length, and the mask, None where nothing is padded."""
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
    most: int,
    pad_id: int,
    end_id: int | None,
) -> Iterator[Int[Tensor, " b"]]:
    """Yield the next token of every sequence, until all have ended.

    Args:
        model: a causal one, in evaluation mode, of enough positions (`check_reach`).
        prompts: ids, at least one each.
        choose: from logits [b v] to ids [b].
        most: tokens of a continuation.
        pad_id: fills a prompt that is shorter than the longest.
        end_id: ends a sequence; it is repeated until the others have ended, too.
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
    for number in range(most):
        token = choose(out.logits.flatten(0, -2))
        if end_id is not None:
            token = token.masked_fill(ended, end_id)
            ended |= token == end_id
        yield token
        if bool(ended.all()) or number + 1 == most:
            return
        out = model(token[:, None], state=out.state)
