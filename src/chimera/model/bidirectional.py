"""Run a causal mixer in both directions in an encoder (SPEC Mixers; DESIGN: direction).

    y = inner→(x) + reverse(inner←(reverse(x)))

`reverse` reverses the real tokens of each sequence and leaves padding in place, so that padding on
either side does not change results. Positions increase in both passes: relative positions are
distances into the past of each pass. Each token is in both passes. [b t d] to [b t d].
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from chimera.contract import BOTH, Context, Mixer, MixerFactory, Out, Parts, Site
from chimera.ops.dropout import fork
from chimera.ops.routing import blend


class Bidirectional(Mixer):
    """Sum of a causal mixer's outputs on the sequence and on its reversal; encoders only, no state.

    Args:
        inner: factory of the causal mixer.
        shared: True shares weights between both passes.
    """

    directions = BOTH

    def __init__(
        self, site: Site, parts: Parts, inner: MixerFactory, *, shared: bool = False
    ) -> None:
        super().__init__()
        one_way = replace(site, causal=True)
        self.ahead = inner(one_way, parts)
        self.back = self.ahead if shared else inner(one_way, parts)
        # The check of positions and the table of rates treat the wrapper as the inner mixer.
        self.component = self.ahead.component  # type: ignore[misc]
        self.position_hooks = self.ahead.position_hooks  # type: ignore[misc]
        self.source, self.cost = self.ahead.source, self.ahead.cost  # type: ignore[misc]

    def forward(self, x: Tensor, ctx: Context, state: Any = None) -> Out:
        ahead = self.ahead(x, ctx)
        ctx = fork(ctx, 1)  # other draws, also where both passes share weights
        if ctx.mask is None:
            back = self.back(x.flip(1), ctx)
            y = back.y.flip(1)
        else:
            index = reversal(ctx.mask)[..., None]
            back = self.back(x.take_along_dim(index, 1), ctx)
            y = back.y.take_along_dim(index, 1)
        return Out(
            ahead.y + y,
            aux=blend((0.5, ahead.aux), (0.5, back.aux)),
            stats=blend((0.5, ahead.stats), (0.5, back.stats)),
        )


def reversal(mask: Bool[Tensor, "b t"]) -> Int[Tensor, "b t"]:
    """Index of the token for each place: real tokens in reverse order, padding unchanged.

    The permutation is its own inverse. Padding may be anywhere.
    """
    t = mask.shape[1]
    place = (~mask).long().argsort(dim=1, stable=True)  # places of real tokens, then of padding
    rank = torch.arange(t, device=mask.device)
    real = mask.sum(1, keepdim=True)
    mirrored = torch.where(rank < real, real - 1 - rank, rank)
    return torch.empty_like(place).scatter_(1, place, place.gather(1, mirrored))
