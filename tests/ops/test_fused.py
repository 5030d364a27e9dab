"""flash-linear-attention's kernels equal the naive recurrences, in half precision.

They are skipped without a GPU or without the extra `gpu`.
"""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch
from torch import Tensor

from chimera.ops import decay, delta, fused
from tests.kit import grads
from tests.reference.recurrences import delta as naive_delta
from tests.reference.recurrences import recurrence

pytestmark = pytest.mark.skipif(
    find_spec("fla") is None or not torch.cuda.is_available(),
    reason="no GPU here, or extra gpu (flash-linear-attention) is not installed",
)
DEVICE = "cuda"
WIDTH = 16


def leaf(*shape: int) -> Tensor:
    """Values that fp16 represents exactly, so that both sides have equal inputs."""
    return torch.randn(*shape, device=DEVICE).half().double().requires_grad_()


def near(got: Tensor, want: Tensor) -> None:
    """Compare with the tolerance of fp16 products, relative to the largest value."""
    assert torch.isfinite(got).all()
    assert (got.double() - want).abs().max() <= 5e-3 * want.abs().max().clamp(min=1e-2)


def agree(got: tuple[Tensor, Tensor | None], want: tuple[Tensor, Tensor], of: list[Tensor]) -> None:
    """Compare outputs, last state and gradients."""
    assert got[0].dtype == torch.float16
    pairs = [(g, w) for g, w in zip(got, want, strict=True) if g is not None]
    for g, w in pairs:
        near(g, w)
    # The loss is linear in the outputs, so that gradients do not depend on their rounding.
    slopes = [torch.randn_like(w) for _, w in pairs]
    sides = [
        sum((x[i].double() * s).mean() for x, s in zip(pairs, slopes, strict=True)) for i in (0, 1)
    ]
    for g, w in zip(*(grads(side, of) for side in sides), strict=True):
        near(g, w)


@pytest.mark.parametrize("with_state", [True, False])
@pytest.mark.parametrize("kind", ["none", "head", "token"])
@pytest.mark.parametrize("t", [1, 64, 70])
def test_decayed(t: int, kind: str, with_state: bool) -> None:
    q, k, v = leaf(1, 2, t, WIDTH), leaf(1, 2, t, WIDTH), leaf(1, 2, t, WIDTH)
    g = {
        "none": None,
        "head": -torch.rand(2, device=DEVICE).double(),
        "token": (-torch.rand(1, 2, t, device=DEVICE).double()).requires_grad_(),
    }[kind]
    state = leaf(1, 2, WIDTH, WIDTH) if with_state else None
    assert fused.suits(q.half(), v.half(), g)
    got = fused.decayed(q.half(), k.half(), v.half(), g, state)
    before = torch.zeros(1, 2, WIDTH, WIDTH, device=DEVICE).double() if state is None else state
    want = recurrence(q, k, v, g, before)
    agree(got, want, [x for x in (q, k, v, g, state) if x is not None and x.requires_grad])


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("t", [1, 64, 70])
def test_delta(t: int, steps: int, gated: bool) -> None:
    q, v = leaf(1, 2, t, WIDTH), leaf(1, 2, t, steps, WIDTH)
    k = torch.nn.functional.normalize(torch.randn(1, 2, t, steps, WIDTH), dim=-1)
    k = k.to(DEVICE).half().double().requires_grad_()
    beta = torch.rand(1, 2, t, steps, 1, device=DEVICE).half().double().requires_grad_()
    g = (-torch.rand(1, 2, t, device=DEVICE).double()).requires_grad_() if gated else None
    state = leaf(1, 2, WIDTH, WIDTH)
    got = delta.chunkwise(q.half(), k.half(), v.half(), beta.half(), g, state)
    want = naive_delta(q, k, v, beta, g, state)
    agree(got, want, [x for x in (q, k, v, beta, g, state) if x is not None])


def test_fp16_has_no_room_for_sums_over_tokens() -> None:
    ones = torch.full((1, 1, 1100, WIDTH), 2.0, device=DEVICE).half()
    o, _ = decay.chunkwise(ones, ones, ones)
    assert o.max() == 1100 * WIDTH * 8  # the kernels would return it in fp16, as infinity


def test_what_the_kernels_do_not_have_stays_with_torch() -> None:
    wide = torch.zeros(1, 2, 8, WIDTH, device=DEVICE)
    assert not fused.suits(wide, wide, None)  # only torch computes float32 exactly
    assert not fused.suits(wide.half(), wide[..., :8].half(), None)
    assert fused.suits(wide.half(), wide.half(), None)
