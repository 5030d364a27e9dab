"""Run grouped tokens through their experts, and report their loads."""

from __future__ import annotations

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from chimera.contract import Context, Out
from chimera.ffn.shared.two_layers import TwoLayer
from chimera.ops.dropout import fork
from chimera.ops.precision import wide
from chimera.ops.reduce import participants
from chimera.ops.routing import Groups, Seats, blend, entropy, touch


def run_experts(
    experts: nn.ModuleList,
    rows: Float[Tensor, "n d"],
    ctx: Context,
    groups: Groups,
    *,
    training: bool,
) -> tuple[Float[Tensor, "n d"], dict[str, Tensor]]:
    """Run each expert on its rows, and add the weighted outputs to the rows of their tokens.

    Args:
        experts: ffns.
        rows: all tokens of the batch.
        ctx: of the batch.
        groups: tokens by expert.
        training: parameters of experts without tokens get zero gradients.
    """
    tokens = groups.tokens
    sizes = groups.sizes

    def of_experts(x: Tensor) -> tuple[Tensor, ...]:
        return x.index_select(0, tokens)[None].split(sizes, 1)

    # Experts that reduce over processes run on all of them, where one may have no tokens.
    everywhere = training and participants() > 1
    positions = of_experts(ctx.pos.expand(len(rows) // ctx.pos.shape[1], -1).flatten())
    inputs = of_experts(rows)
    keys = [None] * len(sizes) if ctx.draws is None else of_experts(ctx.draws.reshape(-1))
    outs = {
        i: experts[i](inputs[i], fork(Context(positions[i], None, ctx.loop, keys[i]), i))
        for i in range(len(sizes))
        if sizes[i] or everywhere
    }
    if not outs:  # all tokens are padding
        return rows * 0.0 + touch(experts.parameters()), {}
    outputs = torch.cat([out.y[0] for out in outs.values()])
    outputs = outputs * groups.gates.to(wide(outputs))[:, None]  # summed in float32
    y = outputs.new_zeros(len(rows), outputs.shape[1]).index_add(0, tokens, outputs)
    if training:
        idle = (e for i, e in enumerate(experts) if i not in outs)
        y = y + touch(p for e in idle for p in e.parameters())
    return y, blend(*((sizes[i] / len(tokens), out.aux) for i, out in outs.items()))


def run_seated(
    experts: nn.ModuleList, rows: Float[Tensor, "n d"], ctx: Context, seats: Seats
) -> tuple[Float[Tensor, "n d"], dict[str, Tensor]]:
    """`run_experts` with a fixed number of rows for each expert, of which those not taken are 0."""
    tokens = seats.tokens
    x = rows.index_select(0, tokens.flatten()).view(*tokens.shape, -1)
    x = x.masked_fill(~seats.taken[..., None], 0.0)
    positions = ctx.pos.expand(len(rows) // ctx.pos.shape[1], -1).flatten()[tokens]
    keys = None if ctx.draws is None else ctx.draws.reshape(-1)[tokens]
    own = Context(positions, seats.taken, ctx.loop, keys)
    if isinstance(first := experts[0], TwoLayer) and all(map(first.alike, experts)):
        outs = [Out(first.at_once(x, own, experts))]
    else:
        each = [(i, slice(i, i + 1), expert) for i, expert in enumerate(experts)]
        outs = [expert(x[one], fork(own.take(one), i)) for i, one, expert in each]
    outputs = torch.cat([out.y for out in outs]).flatten(0, 1)
    outputs = outputs * seats.gates.flatten().to(wide(outputs))[:, None]  # summed in float32
    y = outputs.new_zeros(len(rows), outputs.shape[1]).index_add(0, tokens.flatten(), outputs)
    shares = seats.taken.view(len(outs), -1).sum(1) / seats.taken.sum().clamp(min=1)
    return y, blend(*((share, out.aux) for share, out in zip(shares, outs, strict=True)))


def load_stats(groups: Groups | Seats, probs: Tensor, real: Tensor | None) -> dict[str, Tensor]:
    """Share of choices of each expert, share of dropped choices, entropy of the router."""
    if isinstance(groups, Seats):
        demand = groups.demand
        choices = demand.sum().clamp(min=1)
        dropped = demand.sum() - groups.taken.sum()
        shares = torch.cat([demand, dropped[None]]) / choices
    else:
        total = sum(groups.demand)
        numbers = [*groups.demand, total - sum(groups.sizes)]
        shares = torch.tensor(numbers, device=probs.device) / max(total, 1)
    names = [*(f"expert_load_{i}" for i in range(len(groups.demand))), "drop_rate"]
    stats = dict(zip(names, shares.unbind(), strict=True))
    return stats | {"router_entropy": entropy(probs, real)}


def as_rows(x: Float[Tensor, "b t d"], ctx: Context) -> tuple[Tensor, Tensor | None]:
    """All tokens as rows [b·t d], and which of them are real [b·t]."""
    real = None if ctx.mask is None else rearrange(ctx.mask, "b t -> (b t)")
    return rearrange(x, "b t d -> (b t) d"), real
