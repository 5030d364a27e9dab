"""Fixed-step Runge-Kutta methods of fourth order with four stages (TITAN Algorithm 2).

    kᵢ = f(z + Δt Σⱼ aᵢⱼ kⱼ, t + cᵢ Δt),   z ← z + Δt Σᵢ bᵢ kᵢ,   i = 1 … 4

`CLASSIC` is the paper's tableau. `THREE_EIGHTHS` (Kutta 1901) is torchdiffeq's method `rk4`.
Both solvers integrate from t = 0 to 1. They also return the mean of `measure(slope)` over the
starts of the steps (eq. 52); the first stage has computed this slope already.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

#: (z, t, number of earlier evaluations) -> dz/dt, in the shape and dtype of z
Dynamics = Callable[[Tensor, float | Tensor, int], Tensor]
#: slope -> scalar
Measure = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Tableau:
    """Butcher tableau of an explicit method: nodes c, rows of a, weights b."""

    nodes: tuple[float, ...]
    rows: tuple[tuple[float, ...], ...]
    weights: tuple[float, ...]


CLASSIC = Tableau(
    (0.0, 1 / 2, 1 / 2, 1.0),
    ((), (1 / 2,), (0.0, 1 / 2), (0.0, 0.0, 1.0)),
    (1 / 6, 1 / 3, 1 / 3, 1 / 6),
)
THREE_EIGHTHS = Tableau(
    (0.0, 1 / 3, 2 / 3, 1.0),
    ((), (1 / 3,), (-1 / 3, 1.0), (1.0, -1.0, 1.0)),
    (1 / 8, 3 / 8, 3 / 8, 1 / 8),
)


def solve(
    f: Dynamics,
    z: Tensor,
    steps: int,
    *,
    measure: Measure,
    tableau: Tableau = CLASSIC,
    recompute: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return z(1) and the mean measure; autograd differentiates through the steps.

    Args:
        f: dynamics, evaluated four times per step, in order.
        z: initial value z(0).
        steps: number of steps of equal length.
        measure: function of the slope at the start of each step, to a scalar.
        tableau: Runge-Kutta method.
        recompute: store z at each step only, and compute the step again in the backward pass.
    """

    def step(z: Tensor, i: int) -> tuple[Tensor, Tensor]:
        slopes: list[Tensor] = []
        for node, row in zip(tableau.nodes, tableau.rows, strict=True):
            t = (i + node) / steps
            slopes.append(f(_along(z, row, slopes, steps), t, 4 * i + len(slopes)))
        return _along(z, tableau.weights, slopes, steps), measure(slopes[0])

    measures = []
    for i in range(steps):
        z, measured = checkpoint(step, z, i, use_reentrant=False) if recompute else step(z, i)
        measures.append(measured)
    return z, torch.stack(measures).mean()


def solve_adjoint(
    f: Dynamics, z: Tensor, steps: int, *, measure: Measure, weights: tuple[Tensor, ...]
) -> tuple[Tensor, Tensor]:
    """As `solve` with THREE_EIGHTHS, but with gradients of the exact flow (arXiv 1806.07366).

    The backward pass integrates the adjoint equation by torchdiffeq, from the states stored at the
    steps. `weights` are all tensors other than z that get gradients.
    """
    from torchdiffeq import odeint_adjoint

    device = z.device.type
    # The backward pass also evaluates f, but runs outside the caller's autocast. The autocast cache
    # is off: `cost` below would get weights cast in the forward pass, which records no gradients.
    autocast = partial(
        torch.autocast,
        device,
        dtype=torch.get_autocast_dtype(device),
        enabled=torch.is_autocast_enabled(device),
        cache_enabled=False,
    )

    def flow(t: Tensor, z: Tensor) -> Tensor:
        with autocast():
            return f(z, t, 0)

    def cost(t: Tensor, z: Tensor) -> Tensor:
        return measure(flow(t, z))

    grid = torch.linspace(0, 1, steps + 1, dtype=z.dtype, device=z.device)
    path = odeint_adjoint(flow, z, grid, method="rk4", adjoint_params=weights)
    starts = zip(grid[:-1], path[:-1], strict=True)
    measures = [checkpoint(cost, t, z, use_reentrant=False) for t, z in starts]
    return path[-1], torch.stack(measures).mean()


def _along(z: Tensor, factors: Sequence[float], slopes: Sequence[Tensor], steps: int) -> Tensor:
    """z + Δt Σ factor·slope, over nonzero factors."""
    for factor, slope in zip(factors, slopes, strict=True):
        if factor:
            z = torch.add(z, slope, alpha=factor / steps)
    return z
