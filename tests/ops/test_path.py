"""PaTH: chunks, pieces and single tokens equal the products of matrices between tokens."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from chimera.ops import path
from tests.kit import close, grads
from tests.ops import recurrent


def make(t: int, k: int = 4, v: int = 3, groups: int = 2, reads: int = 2) -> list[Tensor]:
    """q, k, v, w, beta."""
    q, w = torch.randn(2, groups * reads, t, k), F.normalize(torch.randn(2, groups, t, k), dim=-1)
    keys, values = torch.randn(2, groups, t, k), torch.randn(2, groups, t, v)
    found = recurrent.leaves(q, keys, values, w, 2 * torch.rand(2, groups, t))
    return [x for x in found if x is not None]


def in_pieces(x: list[Tensor], width: int, chunk: int) -> tuple[Tensor, Tensor]:
    q, k, v, w, beta = x
    outputs, keys = [], k[:, :, :0]
    for at in range(0, q.shape[2], width):
        end = min(at + width, q.shape[2])
        q1, k1, w1, beta1 = (y[:, :, at:end] for y in (q, k, w, beta))
        visible = torch.ones(end - at, end, dtype=torch.bool).tril(at)[None, None]
        out = path.attend(q1, k1, v[:, :, :end], w1, beta1, keys, visible=visible, chunk=chunk)
        outputs.append(out.y)
        keys = out.keys
    return torch.cat(outputs, 2), keys


def test_reflections_keep_lengths() -> None:
    """β = 2 gives orthogonal maps: keys keep their length however many tokens follow."""
    q, k, v, w, _ = make(150)
    w = F.normalize(w, dim=-1)  # `make` has units in float32
    visible = torch.ones(150, 150, dtype=torch.bool).tril()[None, None]
    keys = path.attend(q, k, v, w, torch.full_like(w[..., 0], 2.0), visible=visible).keys
    close(keys.norm(dim=-1), k.norm(dim=-1), 1e-12)


def test_float32_over_many_tokens() -> None:
    x = [y.detach().float().requires_grad_() for y in make(300, 16, 16)]
    got, exact = in_pieces(x, 300, 64), in_pieces([y.double() for y in x], 300, 64)
    assert (got[0] - exact[0]).abs().max() < 1e-5
    assert all(g.isfinite().all() for g in grads(got[0].sin().sum(), x))
