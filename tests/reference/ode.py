"""Neural-ODE attention by Algorithm 2 of TITAN, one head and token at a time."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from chimera.mixer.ode import ODEAttention


def slope(m: ODEAttention, z: Tensor, t: float) -> Tensor:
    """f(z, t) of one sequence [t d], eq. 26-28, causal if the mixer is."""
    w = [
        getattr(m, f"{name}_proj").weight * (1 + m.alpha[i] * torch.sin(m.omega[i] * t))
        for i, name in enumerate("qkvo")
    ]
    q, k, v = (z @ w[i].T for i in range(3))
    y, n = torch.zeros_like(z), m.head_dim
    for i in range(len(z)):
        seen = i + 1 if m.causal else len(z)
        for h in range(m.heads.h):
            own = slice(h * n, (h + 1) * n)
            a = torch.softmax(k[:seen, own] @ q[i, own] / math.sqrt(n), 0)
            y[i, own] = a @ v[:seen, own]
    return y @ w[3].T


def algorithm_2(f: Callable[[Tensor, float], Tensor], z: Tensor, n: int) -> Tensor:
    """z(1) by the classic Runge-Kutta method in n steps."""
    dt = 1 / n
    for i in range(n):
        t = i * dt
        k1 = f(z, t)
        k2 = f(z + dt / 2 * k1, t + dt / 2)
        k3 = f(z + dt / 2 * k2, t + dt / 2)
        k4 = f(z + dt * k3, t + dt)
        z = z + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return z
