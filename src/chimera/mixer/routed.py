"""Learned choice of mixer by content (SPEC M17; TITAN 12.5 proposes it without a formula).

    p = softmax(W_r c),   c: input of the router, in float32
    soft:  y_t = Σ_m p_m Mixer_m(x)_t
    top1:  y_t = (1 + p_m − sg(p_m)) Mixer_m(x)_t,   m = arg max p         (sg: no gradient)

With `scope: token`, c = x_t. With `scope: sequence`, c is a mean of real tokens: of all tokens in
an encoder, of tokens up to t in a decoder, so that no choice depends on later tokens. An encoder
with `top1` and `sequence` runs each mixer only on the sequences that chose it. In all other cases
every mixer processes every token, because its state needs all tokens. With top1, the output has the
value of the chosen mixer, and the router learns by the gradient of p_m. Aux `balance_mixer` is the
balance loss of the mixture of experts (eq. 42-44), over mixers. [b t d] to [b t d].
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from operator import and_
from typing import Any, Literal, NamedTuple

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from chimera.contract import Context, Mixer, MixerFactory, Out, Parts, Site
from chimera.ops import routing
from chimera.ops.dropout import fork
from chimera.ops.precision import wide


class State(NamedTuple):
    """States of the mixers, sum and number of the real tokens so far."""

    members: tuple[Any, ...]
    total: Float[Tensor, "b d"]
    seen: Int[Tensor, " b"]


class Routed(Mixer):
    """Mixers weighted or chosen by a learned router.

    Args:
        members: mixer factories by name; logged statistics use these names.
        mode: `soft` for a sum weighted by probabilities, `top1` for the most probable mixer.
        scope: one choice per `sequence` or one per `token`.
    """

    component = "routed"
    forms = ("parallel", "recurrent")
    source = "M17; TITAN 12.5"
    cost = "sum of the members' (top1 by sequence in an encoder: the chosen one's)"
    state_size = "sum of the members' + d"

    def __init__(
        self,
        site: Site,
        parts: Parts,
        *,
        members: dict[str, MixerFactory],
        mode: Literal["soft", "top1"] = "soft",
        scope: Literal["sequence", "token"] = "sequence",
    ) -> None:
        super().__init__()
        if not members:
            raise ValueError("mixer=routed has no members: name at least one member")
        self.members: Any = nn.ModuleDict(
            {name: make(site, parts) for name, make in members.items()}
        )
        self.router = nn.Linear(site.dim, len(members), bias=False)
        self.mode = mode
        self.scope = scope
        self.causal = site.causal
        mixers = list(self.members.values())
        # Capabilities that all members share; `model.assemble` checks them on the instance.
        self.directions = reduce(and_, (m.directions for m in mixers))  # type: ignore[misc]
        self.position_hooks = reduce(and_, (m.position_hooks for m in mixers))  # type: ignore[misc]

    def init_state(self, batch: int) -> State:
        weight = self.router.weight
        return State(
            tuple(m.init_state(batch) for m in self.members.values()),
            weight.new_zeros(batch, weight.shape[1], dtype=wide(weight)),
            torch.zeros(batch, dtype=torch.long, device=weight.device),
        )

    def forward(self, x: Tensor, ctx: Context, state: State | None = None) -> Out:
        members, *running = state or (None, None, None)
        content, real = x, ctx.mask
        if self.scope == "sequence" and self.causal:
            content, *running = routing.running_mean(x, ctx.mask, *running)
        elif self.scope == "sequence":
            content, real = routing.mean(x, ctx.mask), None
        weights = probs = routing.probabilities(content, self.router.weight)
        flat = rearrange(probs, "b t m -> (b t) m")
        chosen = flat.argmax(-1)
        if self.mode == "top1":
            one_hot = nn.functional.one_hot(chosen, len(self.members)).view_as(probs)
            weights = one_hot * (1 + probs - probs.detach())
        if self.mode == "top1" and self.scope == "sequence" and not self.causal:
            out = self._by_sequence(x, ctx, chosen, weights)
        else:
            out = self._all(x, ctx, weights, members)
        real = None if real is None else rearrange(real, "b t -> (b t)")
        share = routing.average(rearrange(weights.detach(), "b t m -> (b t) m"), real)
        shares = {f"mixer_share_{n}": s for n, s in zip(self.members, share.unbind(), strict=True)}
        return Out(
            out.y,
            None if members is None else State(out.state, *running),
            out.aux | {"balance_mixer": routing.balance(flat, chosen, real)},
            out.stats | shares | {"mixer_entropy": routing.entropy(flat, real)},
        )

    def _all(self, x: Tensor, ctx: Context, weights: Tensor, states: Any) -> Out:
        """Run every mixer on every token."""
        states = states or [None] * len(self.members)
        jobs = enumerate(zip(self.members.values(), states, strict=True))
        outs = [m(x, fork(ctx, i), s) for i, (m, s) in jobs]
        parts = zip(outs, weights[..., None].unbind(-2), strict=True)
        y = sum(out.y * weight.to(wide(out.y)) for out, weight in parts)
        aux = routing.blend(*((1.0, out.aux) for out in outs))
        stats = _named(zip(self.members, outs, strict=True))
        return Out(y, tuple(out.state for out in outs), aux, stats)

    def _by_sequence(self, x: Tensor, ctx: Context, chosen: Tensor, weights: Tensor) -> Out:
        """Run each mixer on the sequences that chose it."""
        gates = weights[:, 0].gather(1, chosen[:, None])
        groups = routing.group(chosen[:, None], gates, None, count=len(self.members))

        rows = groups.tokens.split(groups.sizes)
        jobs = enumerate(zip(self.members.items(), rows, strict=True))
        outs = {
            name: m(x.index_select(0, chosen), fork(ctx.take(chosen), i))
            for i, ((name, m), chosen) in jobs
            if len(chosen)
        }
        y = torch.cat([out.y for out in outs.values()])
        y = y * groups.gates.to(wide(y))[:, None, None]
        y = y.index_select(0, groups.tokens.argsort())
        if self.training:
            idle = (m for name, m in self.members.items() if name not in outs)
            y = y + routing.touch(p for m in idle for p in m.parameters())
        used = (size / len(x) for size in groups.sizes if size)
        aux = routing.blend(*((w, out.aux) for w, out in zip(used, outs.values(), strict=True)))
        return Out(y, None, aux, _named(outs.items()))


def _named(outs: Iterable[tuple[str, Out]]) -> dict[str, Tensor]:
    """Statistics of the members, with member names as prefixes of the keys."""
    return {f"{name}_{key}": value for name, out in outs for key, value in out.stats.items()}
