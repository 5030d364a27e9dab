"""TTT-Linear by its definition: torch differentiates the inner loss (arXiv 2407.04620, 2.1–2.4)."""

from __future__ import annotations

import torch
from torch import Tensor


def norm(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    x = x - x.mean(-1, keepdim=True)
    return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * scale + shift


def ttt(
    q: Tensor, k: Tensor, v: Tensor, eta: Tensor, inner: Tensor, scale: Tensor, shift: Tensor,
    places: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """q, k, v [b h t k], eta [b h t], inner [h k+1 k] (W, then b), places [m]: z, (W, b)_{t'}."""
    outputs, m = [], len(places)
    model = inner.expand(len(q), *inner.shape)
    for t in range(q.shape[2]):
        if t % m == 0:
            start, total = model, 0.0
        x, target, read = (y[:, :, t : t + 1] for y in (k, v, q))
        guess = x + norm(x @ start[:, :, :-1] + start[:, :, -1:], scale, shift)
        loss = (guess - target).square().sum() / 2
        (g,) = torch.autograd.grad(loss, start, create_graph=True)
        total = total + eta[:, :, t, None, None] * g
        model = start - places[t % m] * total
        outputs.append(read + norm(read @ model[:, :, :-1] + model[:, :, -1:], scale, shift))
    return torch.cat(outputs, 2), model if q.shape[2] % m == 0 else start
