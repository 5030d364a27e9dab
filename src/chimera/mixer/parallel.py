"""Several mixers on one input, side by side in a layer (Hymba, arXiv 2411.13676).

    y = 1/n Σ_i RMSNorm_i(Mixer_i(x))                     each norm with a learned scale per channel

Hymba has attention heads and state-space heads in parallel, so that each token is both recalled
exactly and summarised. There both kinds share W_in and W_out, and the norms are before W_out:
Y = W_out (β₁ norm(M_attn W_in X) + β₂ norm(M_ssm W_in X)) (section 2.1). Here the mixers are any
components with projections of their own, and the norms are after them. Hymba's memory tokens, its
windows in most layers and shared caches are choices around it. A member that only reads backwards
may go without positions, as in a pattern; in an encoder with such a member, all go both ways.
[b t d] to [b t d].
"""

from __future__ import annotations

from functools import reduce
from operator import and_
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chimera.contract import CAUSAL, Context, Mixer, MixerFactory, Out, Parts, Site
from chimera.ops.dropout import fork
from chimera.ops.precision import widen
from chimera.ops.routing import blend

EPS = 1e-6


class Parallel(Mixer):
    """Mean of the normed outputs of several mixers.

    Args:
        members: mixer factories by name; logged statistics use these names.
    """

    component = "parallel"
    forms = ("parallel", "recurrent")
    source = "arXiv 2411.13676"
    cost = "sum of the members'"
    state_size = "sum of the members'"

    def __init__(self, site: Site, parts: Parts, *, members: dict[str, MixerFactory]) -> None:
        super().__init__()
        if not members:
            raise ValueError("mixer=parallel has no members: name at least one member")
        self.members: Any = nn.ModuleDict(
            {name: make(site, parts) for name, make in members.items()}
        )
        self.norms = nn.Parameter(torch.ones(len(members), site.dim))
        mixers = list(self.members.values())
        need = [m for m in mixers if m.directions != CAUSAL] or mixers
        # Capabilities that the members share; `model.assemble` checks them on the instance.
        self.directions = reduce(and_, (m.directions for m in mixers))  # type: ignore[misc]
        self.position_hooks = reduce(and_, (m.position_hooks for m in need))  # type: ignore[misc]
        self.documents = all(m.documents for m in mixers)  # type: ignore[misc]

    def init_state(self, batch: int) -> tuple[Any, ...]:
        return tuple(m.init_state(batch) for m in self.members.values())

    def forward(self, x: Tensor, ctx: Context, state: tuple[Any, ...] | None = None) -> Out:
        states = state or [None] * len(self.members)
        jobs = enumerate(zip(self.members.values(), states, strict=True))
        outs = [m(x, fork(ctx, i), s) for i, (m, s) in jobs]
        y = torch.stack([widen(out.y) for out in outs], -2)
        y = (F.rms_norm(y, y.shape[-1:], eps=EPS) * self.norms).mean(-2)
        stats = {
            f"{name}_{key}": value
            for name, out in zip(self.members, outs, strict=True)
            for key, value in out.stats.items()
        }
        return Out(
            y.to(x.dtype),
            None if state is None else tuple(out.state for out in outs),
            blend(*((1.0, out.aux) for out in outs)),
            stats,
        )
