"""Kinds of attention, one query at a time."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

# Attention-free transformer, one query at a time (arXiv 2105.14103, eq. 2).


def aft(k: Tensor, v: Tensor, w: Tensor, *, causal: bool) -> Tensor:
    """Output [t d] from keys and values [t d] and pairwise biases [t t], without the gate σ(q)."""
    rows = []
    for t in range(len(k)):
        seen = slice(0, t + 1) if causal else slice(None)
        weights = (k[seen] + w[t, seen, None]).softmax(0)
        rows.append((weights * v[seen]).sum(0))
    return torch.stack(rows)


# Softmax attention over a neighbourhood, one query at a time.


def local_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    near: Callable[[int, int], bool],
    bias: Callable[[int, int], Tensor] | None = None,
) -> Tensor:
    """Output [h t k]: query i attends to keys j with near(i, j); bias(i, j) is [h]."""
    rows = []
    for i in range(q.shape[1]):
        seen = [j for j in range(k.shape[1]) if near(i, j)]
        scores = torch.einsum("hk,hjk->hj", q[:, i], k[:, seen]) / q.shape[-1] ** 0.5
        if bias is not None:
            scores = scores + torch.stack([bias(i, j) for j in seen], 1)
        rows.append(torch.einsum("hj,hjv->hv", scores.softmax(-1), v[:, seen]))
    return torch.stack(rows, 1)


# PaTH by its definition: a product of matrices between each two tokens (arXiv 2505.16381).


def path(q: Tensor, k: Tensor, v: Tensor, w: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """q, k, w [b h t k], v [b h t v], beta [b h t]: outputs, and keys as the last token sees them.

    score_ij = k_jᵀ H_{j+1} … H_i q_i for j ≤ i, H_s = I − β_s w_s w_sᵀ.
    """
    one, outputs, keys = torch.eye(k.shape[-1], dtype=k.dtype), [], []
    for i in range(q.shape[2]):
        product, scores, keys = one.expand(*q.shape[:2], *one.shape), [], []
        for j in range(i, -1, -1):
            keys.insert(0, product.mT @ k[:, :, j, :, None])
            scores.insert(0, (keys[0] * q[:, :, i, :, None]).sum((-1, -2)))
            move = one - beta[:, :, j, None, None] * w[:, :, j, :, None] * w[:, :, j, None]
            product = move @ product
        weights = torch.stack(scores, -1).softmax(-1)
        outputs.append(torch.einsum("bhs,bhsv->bhv", weights, v[:, :, : i + 1]))
    return torch.stack(outputs, 2), torch.stack(keys, 2)[..., 0]


# Neural-ODE attention by Algorithm 2 of TITAN, one token at a time.


def ode_slope(m: Any, z: Tensor, t: float) -> Tensor:
    """f(z, t) of one sequence [t d], eq. 26-28, causal if the mixer is."""
    w = [
        getattr(m, f"{name}_proj").weight * (1 + m.alpha[i] * torch.sin(m.omega[i] * t))
        for i, name in enumerate("qkvo")
    ]
    q, k, v = ((z @ w[i].T).unflatten(-1, (m.heads.h, m.head_dim)) for i in range(3))
    rows = []
    for i in range(len(z)):
        seen = i + 1 if m.causal else len(z)
        scores = torch.einsum("hn,shn->sh", q[i], k[:seen]) / math.sqrt(m.head_dim)
        rows.append(torch.einsum("sh,shn->hn", scores.softmax(0), v[:seen]).flatten())
    return torch.stack(rows) @ w[3].T


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
