"""The next token from its logits: the likeliest, or drawn from the likelier ones.

    p = softmax(z / T);  top-k keeps the k largest;  top-p (nucleus, arXiv 1904.09751) the smallest
    set of largest ones whose sum reaches p;  what is kept is drawn in proportion

A draw takes one uniform number per sequence from a generator of that sequence's own, so that what
is written does not depend on what else is in the batch. z [b v] to ids [b].
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from chimera.generate.settings import Generation


def probabilities(
    logits: Float[Tensor, "b v"], *, temperature: float, top_k: int | None, top_p: float
) -> Float[Tensor, "b v"]:
    """What a token is drawn from."""
    # Subtracted first, or a tiny temperature would overflow.
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    wide = (wide - wide.amax(-1, keepdim=True)) / temperature
    order = wide.argsort(dim=-1, descending=True, stable=True)
    p = wide.gather(-1, order).softmax(-1)
    if top_k is not None:
        p[:, top_k:] = 0
        p = p / p.sum(-1, keepdim=True)
    # The first one that reaches top_p stays, so that there always is one.
    p = p.masked_fill(p.cumsum(-1) - p >= top_p, 0)
    p[:, 0] = p[:, 0].clamp(min=torch.finfo(p.dtype).tiny)
    return torch.zeros_like(p).scatter_(-1, order, p / p.sum(-1, keepdim=True))


def choose(
    logits: Float[Tensor, "b v"], how: Generation, generators: Sequence[torch.Generator]
) -> Int[Tensor, " b"]:
    """The next token of each sequence."""
    if how.greedy:
        return logits.argmax(-1)
    p = probabilities(
        logits, temperature=how.temperature, top_k=how.top_k, top_p=how.top_p
    ).double()
    u = torch.cat([torch.rand(1, generator=g, dtype=torch.float64) for g in generators])
    edges = p.cumsum(-1)
    # Scaled by the sum, which rounding keeps from being 1: no draw falls beyond the last token.
    drawn = torch.searchsorted(edges, u.to(p.device)[:, None] * edges[:, -1:], right=True)
    return drawn[:, 0].clamp(max=p.shape[-1] - 1)


def generators(seed: int, first: int, count: int) -> list[torch.Generator]:
    """One per sequence, by its number among all prompts."""
    return [torch.Generator().manual_seed((seed << 20) + first + i) for i in range(count)]
