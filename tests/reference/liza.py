"""Linear branch of LiZAttention by the paper's equations, token by token (SPEC M12)."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from tests.reference.delta import delta


def linear_branch(
    q: Tensor, k: Tensor, v: Tensor, *, order: int, trick: str, gate: str, phi: Callable,
    chunk: int, gate_input: str = "normalised", pool: int = 3,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Reads before the norm (eq. 6) and the last state; q, k, v [b h t k] from the projections."""
    raw = {"k": k, "v": v}
    q, k, v = (torch.nn.functional.silu(x) for x in (q, k, v))
    q, k, v = (x / x.norm(dim=-1, keepdim=True) for x in (q, k, v))
    h, reads, tokens = torch.zeros(*k.shape[:2], k.shape[3], v.shape[3]).to(k), [], k.shape[2]
    virtual, sources = {"k": [], "v": []}, {"k": [], "v": []}
    for t in range(tokens):
        for name, x in (("k", k), ("v", v)):
            virtual[name].append(virtual_tokens(x, t, order, trick))
            source = raw[name] if gate_input == "projected" else x
            sources[name].append(virtual_tokens(source, t, order, trick))
        pooled = {n: sum(xs[max(0, t - pool + 1) :]) / pool for n, xs in sources.items()}
        beta = math.prod(pooled[n].sigmoid() for n in gate)[:, :, None]
        keys, values = (virtual[n][t][:, :, None] for n in "kv")
        read, h = delta(q[:, :, t : t + 1], keys, values, beta, None, h)
        reads.append(read)
        h = phi(h) if (t + 1) % chunk == 0 else h
    return torch.cat(reads, 2), h


def virtual_tokens(x: Tensor, t: int, order: int, trick: str) -> Tensor:
    """Virtual tokens [b h n k] of token t, eq. 22 and 23."""
    past = [x[:, :, t - j] if t >= j else torch.zeros_like(x[:, :, t]) for j in range(order)]
    pairs = torch.view_as_complex(x[:, :, t].unflatten(-1, (-1, 2)).contiguous())
    tokens = []
    for m in range(order):
        derived = sum((-1) ** j * math.comb(m, j) * past[j] for j in range(m + 1)) / 2**m
        turn = torch.polar(*torch.tensor([1.0, 2 * math.pi * m / order], dtype=x.dtype))
        rotated = torch.view_as_real(pairs * turn).flatten(-2)
        tokens.append({"derivative": derived, "rotary": rotated, "none": past[0]}.get(trick))
        if trick == "both":
            tokens[-1] = (derived + rotated) / 2
    return torch.stack(tokens, 2)
