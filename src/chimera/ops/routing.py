"""Learned choices: router probabilities, load balance, and rows grouped by the choice.

    g(x) = softmax(W_g x), at least in float32                                 (TITAN eq. 38)
    balance = N Σᵢ fᵢ Pᵢ,  fᵢ: share of tokens whose first choice is i, Pᵢ: mean probability of i
                                                              (eq. 42-44 without α: λ_bal is it)

Even routing gives balance 1 and collapse N (SPEC E2 corrects the paper's [1/N, 1]). The 1 is no
strict minimum: f follows the arg max, so shares that contradict the mean probabilities go below.

n: tokens, e: experts, k: choices per token.
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

from chimera.ops.precision import as_given


def probabilities(x: Float[Tensor, "*n d"], weight: Float[Tensor, "e d"]) -> Float[Tensor, "*n e"]:
    """Router probabilities, outside autocast: rounded logits reorder near-equal experts."""
    wide = torch.promote_types(x.dtype, torch.float32)
    with as_given(x):
        return F.linear(x.to(wide), weight.to(wide)).softmax(-1)


def average(x: Float[Tensor, "n e"], real: Bool[Tensor, " n"] | None) -> Float[Tensor, " e"]:
    """Mean over the real rows; zero if there is none."""
    if real is None:
        return x.mean(0)
    return x.masked_fill(~real[:, None], 0.0).sum(0) / real.sum().clamp(min=1)


def balance(
    probs: Float[Tensor, "n e"], first: Int[Tensor, " n"], real: Bool[Tensor, " n"] | None
) -> Float[Tensor, ""]:
    """N Σ fᵢ Pᵢ over the real rows; the gradient flows through P."""
    count = probs.shape[1]
    share = average(F.one_hot(first, count).to(probs.dtype), real)
    return count * (share * average(probs, real)).sum()


def entropy(probs: Float[Tensor, "n e"], real: Bool[Tensor, " n"] | None) -> Float[Tensor, ""]:
    """Mean entropy of the rows in nats: log e for an undecided router, 0 for a sure one."""
    return average(torch.special.entr(probs.detach()), real).sum()


def _wide(x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """x at least in float32 with zeros at padding, and what is real [b t 1]."""
    real = x.new_ones(*x.shape[:2], 1, dtype=torch.bool) if mask is None else mask[..., None]
    return x.to(torch.promote_types(x.dtype, torch.float32)).masked_fill(~real, 0.0), real


def mean(x: Float[Tensor, "b t d"], mask: Bool[Tensor, "b t"] | None) -> Float[Tensor, "b 1 d"]:
    """Mean of each sequence over its real tokens."""
    wide, real = _wide(x, mask)
    return wide.sum(1, keepdim=True) / real.sum(1, keepdim=True).clamp(min=1)


def running_mean(
    x: Float[Tensor, "b t d"],
    mask: Bool[Tensor, "b t"] | None,
    total: Float[Tensor, "b d"] | None = None,
    seen: Int[Tensor, " b"] | None = None,
) -> tuple[Float[Tensor, "b t d"], Float[Tensor, "b d"], Int[Tensor, " b"]]:
    """Mean of the real tokens up to each; `total` and `seen` of earlier calls go on."""
    wide, real = _wide(x, mask)
    sums, counts = wide.cumsum(1), real.cumsum(1)[..., 0].expand(x.shape[:2])
    if total is not None and seen is not None:
        sums, counts = sums + total[:, None], counts + seen[:, None]
    return sums / counts.clamp(min=1)[..., None], sums[:, -1], counts[:, -1]


class Groups(NamedTuple):
    """Rows sorted by expert: `tokens[m]` and their `gates[m]`, `sizes[e]` of them for each."""

    tokens: Int[Tensor, " m"]
    gates: Float[Tensor, " m"]
    sizes: list[int]
    wanted: list[int]


def group(
    experts: Int[Tensor, "n k"],
    gates: Float[Tensor, "n k"],
    real: Bool[Tensor, " n"] | None,
    *,
    count: int,
    capacity: float | None = None,
    in_order: bool = False,
) -> Groups:
    """Sort the choices of all real tokens by expert, by one stable sort.

    Args:
        experts: the k choices of each token, best first.
        gates: their weights.
        real: False rows take part in nothing.
        count: number of experts.
        capacity: an expert serves ⌈capacity · tokens⌉ rows and the rest is dropped; None: all.
        in_order: an expert serves tokens strictly in order, so that nothing depends on later ones;
            else all first choices come before all second ones.
    """
    n, k = experts.shape
    pattern = "n k -> (n k)" if in_order else "n k -> (k n)"
    wanted = rearrange(experts, pattern)
    if real is not None:
        wanted = wanted.masked_fill(~rearrange(real[:, None].expand(n, k), pattern), count)
    wanted, slots = wanted.sort(stable=True)
    # The one wait for the device: sizes have to be known here.
    edges = torch.searchsorted(wanted, torch.arange(count + 1, device=wanted.device)).tolist()
    sizes = demand = [high - low for low, high in pairwise(edges)]
    if capacity is not None:
        # The tolerance keeps 1.1 · 30 / 3 = 11.000000000000002 at 11.
        most = math.ceil(capacity * (edges[-1] // k) - 1e-9)
        sizes = [min(size, most) for size in sizes]
    slots = torch.cat([slots[at : at + size] for at, size in zip(edges, sizes, strict=False)])
    tokens = slots // k if in_order else slots % n
    return Groups(tokens, rearrange(gates, pattern).index_select(0, slots), sizes, demand)


def touch(idle: Iterable[Tensor]) -> Tensor | float:
    """A zero that depends on every trained tensor of parts that had nothing to do.

    Their gradients are then zero and not missing, which distributed training would wait for.
    """
    return sum((p.flatten()[0] * 0.0 for p in idle if p.requires_grad), 0.0)


def blend(*reports: tuple[float, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Weighted sums by key of the auxiliary losses or statistics of several parts."""
    total: dict[str, Tensor] = {}
    for weight, report in reports:
        for key, value in report.items():
            total[key] = total[key] + weight * value if key in total else weight * value
    return total
