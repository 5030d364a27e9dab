"""Token by token from a decoder, each mixer with its own state.

The prompts are padded on the left and read in one pass, which leaves a state; then every token is
one pass over one position. What that costs does not grow with the text for recurrent mixers, and
for attention by the reading of its cache alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from chimera.generate.sample import choose, generators
from chimera.generate.settings import Generation
from chimera.model.language import LanguageModel


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
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    how: Generation,
    *,
    pad_id: int,
    end_id: int | None,
    first: int = 0,
) -> Iterator[Int[Tensor, " b"]]:
    """The tokens that follow, one of each sequence at a time, until all have ended.

    Args:
        model: in evaluation mode.
        prompts: ids, at least one each.
        how: settings.
        pad_id: stands where a prompt is shorter than the longest.
        end_id: ends a sequence; it is repeated until the others have ended, too.
        first: number of the first prompt among all, for the seed.

    Raises:
        UserError: the model knows fewer positions than the longest prompt and its continuation.
    """
    model.check_reach(max(map(len, prompts)) + how.max_new - 1)
    device = next(model.parameters()).device
    ids, mask = pad_left(prompts, pad_id)
    own = generators(how.seed, first, len(prompts))
    ended = torch.zeros(len(prompts), dtype=torch.bool, device=device)
    last = torch.arange(1, len(prompts) + 1, device=device) * ids.shape[1] - 1
    out = model(
        ids.to(device),
        None if mask is None else mask.to(device),
        index=last,
        state=model.init_state(len(prompts)),
    )
    for number in range(how.max_new):
        token = choose(out.logits.flatten(0, -2), how, own)
        if end_id is not None:
            token = token.masked_fill(ended, end_id)
            ended |= token == end_id
        yield token
        if bool(ended.all()) or number + 1 == how.max_new:
            return
        out = model(token[:, None], state=out.state)
