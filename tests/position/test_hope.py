"""HOPE: rotation, then projection on a hypersphere of learned radius (SPEC P1)."""

from __future__ import annotations

import pytest
import torch

from chimera.position.hope import Hope
from chimera.position.rope import Rotary
from tests.kit import close, site


def build(heads: int = 4) -> Hope:
    return Hope(site(), heads, 8)


def test_is_the_rotation_projected_on_a_sphere() -> None:
    hope, pos = build().double(), torch.arange(5)[None]
    with torch.no_grad():
        hope.log_radius.copy_(torch.tensor([0.0, 1.0, 2.0, -1.0]))
    q, k = torch.randn(2, 4, 5, 8).double(), torch.randn(2, 2, 5, 8).double()
    turned = Rotary(site(), 4, 8).rotate(q, k, pos)
    radius = torch.tensor([0.0, 1.0, 2.0, -1.0]).double().exp()[:, None, None]
    got = hope.rotate(q, k, pos)
    close(got[0], turned[0] / turned[0].norm(dim=-1, keepdim=True) * radius)
    close(got[1], turned[1] / turned[1].norm(dim=-1, keepdim=True) * 8**0.5)


def test_nothing_stays_nothing() -> None:
    zero = torch.zeros(1, 4, 2, 8)
    close(build().rotate(zero, zero, torch.arange(2)[None]), (zero, zero))


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="needs an even head width"):
        Hope(site(), 4, 7)
