"""PaTH over many tokens; tests/mixer/test_path.py has its definition."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from chimera.ops import path
from tests.kit import grads


def test_float32_over_many_tokens() -> None:
    q, k, v = torch.randn(2, 4, 300, 16), torch.randn(2, 2, 300, 16), torch.randn(2, 2, 300, 16)
    w, beta = F.normalize(torch.randn(2, 2, 300, 16), dim=-1), 2 * torch.rand(2, 2, 300)
    x = [y.requires_grad_() for y in (q, k, v, w, beta)]
    visible = torch.ones(300, 300, dtype=torch.bool).tril()[None, None]
    got = path.attend(*x, visible=visible).y
    exact = path.attend(*(y.double() for y in x), visible=visible).y
    assert (got - exact).abs().max() < 1e-5
    assert all(g.isfinite().all() for g in grads(got.sin().sum(), x))
