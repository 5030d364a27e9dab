"""Routing: router probabilities, load balance, and tokens grouped by expert.

    g(x) = softmax(W_g x), in float32 or wider                                 (TITAN eq. 38)
    balance = N Σᵢ fᵢ Pᵢ,  fᵢ: share of tokens whose first choice is i, Pᵢ: mean probability of i
                                                    (eq. 42-44 without α: λ_bal has its role)

Balance is 1 for even routing and N for collapse (SPEC E2 corrects the paper's [1/N, 1]). The value
1 is not a strict minimum: f follows the arg max, so that balance is below 1 if the shares
contradict the mean probabilities.

Dimensions: n tokens, e experts, k choices per token.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from chimera.ops import reduce
from chimera.ops.numberless import numberless
from chimera.ops.precision import autocast_off, wide, widen


def probabilities(x: Float[Tensor, "*n d"], weight: Float[Tensor, "e d"]) -> Float[Tensor, "*n e"]:
    """Router probabilities, without autocast: rounded logits reorder near-equal experts."""
    with autocast_off(x):
        return F.linear(widen(x), weight.to(wide(x))).softmax(-1)


def average(x: Float[Tensor, "n e"], real: Bool[Tensor, " n"] | None) -> Float[Tensor, " e"]:
    """Mean over the real rows; zero if no row is real."""
    if real is None:
        return x.mean(0)
    return x.masked_fill(~real[:, None], 0.0).sum(0) / real.sum().clamp(min=1)


def balance(
    probs: Float[Tensor, "n e"], first: Int[Tensor, " n"], real: Bool[Tensor, " n"] | None
) -> Float[Tensor, ""]:
    """Balance loss N Σ fᵢ Pᵢ over the real rows of all processes; only P has a gradient."""
    count = probs.shape[1]
    both = torch.cat([F.one_hot(first, count).to(probs.dtype), probs], 1)
    if real is None:
        rows = both.new_full((1,), len(both))
    else:
        both, rows = both.masked_fill(~real[:, None], 0.0), real.sum().to(both.dtype)[None]
    sums = reduce.total(torch.cat([both.sum(0), rows]))
    share, mean, rows = sums.split([count, count, 1])
    return count * (share * mean).sum() / rows.squeeze(0).clamp(min=1).square()


def entropy(probs: Float[Tensor, "n e"], real: Bool[Tensor, " n"] | None) -> Float[Tensor, ""]:
    """Mean entropy of the rows in nats: ln e for uniform probabilities, 0 for a certain choice."""
    return average(torch.special.entr(probs.detach()), real).sum()


def _real(x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """x in float32 or wider with zeros at padding, and the mask as [b t 1]."""
    real = x.new_ones(*x.shape[:2], 1, dtype=torch.bool) if mask is None else mask[..., None]
    return widen(x).masked_fill(~real, 0.0), real


def mean(x: Float[Tensor, "b t d"], mask: Bool[Tensor, "b t"] | None) -> Float[Tensor, "b 1 d"]:
    """Mean of each sequence over its real tokens."""
    x, real = _real(x, mask)
    return x.sum(1, keepdim=True) / real.sum(1, keepdim=True).clamp(min=1)


def running_mean(
    x: Float[Tensor, "b t d"],
    mask: Bool[Tensor, "b t"] | None,
    total: Float[Tensor, "b d"] | None = None,
    seen: Int[Tensor, " b"] | None = None,
) -> tuple[Float[Tensor, "b t d"], Float[Tensor, "b d"], Int[Tensor, " b"]]:
    """Mean of the real tokens up to each token, the last sum and count of tokens.

    Args:
        x: inputs.
        mask: True for real tokens; None if there is no padding.
        total: sum from earlier calls.
        seen: number of tokens in earlier calls.
    """
    x, real = _real(x, mask)
    sums, counts = x.cumsum(1), real.cumsum(1)[..., 0].expand(x.shape[:2])
    if total is not None and seen is not None:
        sums, counts = sums + total[:, None], counts + seen[:, None]
    return sums / counts.clamp(min=1)[..., None], sums[:, -1], counts[:, -1]


class Groups(NamedTuple):
    """Tokens sorted by expert: indices, gates, rows per expert after and before dropping."""

    tokens: Int[Tensor, " m"]
    gates: Float[Tensor, " m"]
    sizes: list[int]
    demand: list[int]


def group(
    experts: Int[Tensor, "n k"],
    gates: Float[Tensor, "n k"],
    real: Bool[Tensor, " n"] | None,
    *,
    count: int,
    capacity: float | None = None,
    in_order: bool = False,
) -> Groups:
    """Sort the choices of all real tokens by expert, with one stable sort.

    Args:
        experts: the k choices of each token, best first.
        gates: weights of the choices.
        real: False for padding, which gets no expert.
        count: number of experts.
        capacity: an expert takes at most ⌈capacity · tokens⌉ rows and drops the others; None: no
            limit.
        in_order: True if experts take tokens in order of time, so that no token depends on later
            tokens; False if all first choices come before all second choices.
    """
    n, k = experts.shape
    choices, slots = _by_expert(experts, real, count, in_order)
    # The only synchronisation with the device: group sizes are needed on the host.
    if numberless(choices):  # shapes alone are computed: as an even router
        edges = [len(choices) * expert // count for expert in range(count + 1)]
    else:
        bounds = torch.arange(count + 1, device=choices.device)
        edges = torch.searchsorted(choices, bounds).tolist()
    sizes = demand = [high - low for low, high in pairwise(edges)]
    if capacity is not None:
        # The tolerance keeps 1.1 · 30 / 3 = 11.000000000000002 at 11.
        limit = math.ceil(capacity * (edges[-1] // k) - 1e-9)
        sizes = [min(size, limit) for size in sizes]
    slots = torch.cat([slots[at : at + size] for at, size in zip(edges, sizes, strict=False)])
    tokens = slots // k if in_order else slots % n
    gates = rearrange(gates, _pattern(in_order)).index_select(0, slots)
    return Groups(tokens, gates, sizes, demand)


class Seats(NamedTuple):
    """Tokens by expert, in equally many rows for each: indices and gates; `taken` rows are real.

    `demand` is the number of choices of each expert before dropping.
    """

    tokens: Int[Tensor, "e c"]
    gates: Float[Tensor, "e c"]
    taken: Bool[Tensor, "e c"]
    demand: Int[Tensor, " e"]


def seat(
    experts: Int[Tensor, "n k"],
    gates: Float[Tensor, "n k"],
    real: Bool[Tensor, " n"] | None,
    *,
    count: int,
    capacity: float,
    in_order: bool = False,
) -> Seats:
    """The same choices as `group` with a capacity, in shapes that no number of a device decides.

    The host waits for nothing, and computes padding where an expert is not full: on a GPU that is
    less than the wait. Arguments are those of `group`.
    """
    n, k = experts.shape
    choices, slots = _by_expert(experts, real, count, in_order)
    edges = torch.searchsorted(choices, torch.arange(count + 1, device=choices.device))
    demand = edges.diff()
    limit = ((edges[-1:] // k).double() * capacity - 1e-9).ceil().long()
    seats = torch.arange(min(n, math.ceil(capacity * n - 1e-9)), device=edges.device)
    taken = seats < torch.minimum(demand, limit)[:, None]
    chosen = slots[(edges[:-1, None] + seats).clamp(max=n * k - 1)]
    tokens = chosen // k if in_order else chosen % n
    found = rearrange(gates, _pattern(in_order)).index_select(0, chosen.flatten())
    return Seats(tokens, found.view_as(taken).masked_fill(~taken, 0.0), taken, demand)


def _pattern(in_order: bool) -> str:
    return "n k -> (n k)" if in_order else "n k -> (k n)"


def _by_expert(
    experts: Int[Tensor, "n k"], real: Bool[Tensor, " n"] | None, count: int, in_order: bool
) -> tuple[Tensor, Tensor]:
    """Choices sorted by expert, those of padding at the end, and the slots that they had."""
    pattern = _pattern(in_order)
    choices = rearrange(experts, pattern)
    if real is not None:
        padding = ~rearrange(real[:, None].expand(experts.shape), pattern)
        choices = choices.masked_fill(padding, count)
    return choices.sort(stable=True)


def touch(idle: Iterable[Tensor]) -> Tensor | float:
    """Zero that depends on every trained tensor of `idle`, parameters of parts without tokens.

    These parameters then have zero gradients; distributed training waits for missing gradients.
    """
    return sum((p.flatten()[0] * 0.0 for p in idle if p.requires_grad), 0.0)


def blend(*reports: tuple[float, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Weighted sums, per key, of auxiliary losses or statistics of several parts."""
    total: dict[str, Tensor] = {}
    for weight, report in reports:
        for key, value in report.items():
            total[key] = total[key] + weight * value if key in total else weight * value
    return total
