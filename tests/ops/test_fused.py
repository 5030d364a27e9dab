"""flash-linear-attention's kernels: they equal the naive recurrences; which inputs go to them.

Kernels are skipped without a GPU or without the extra `gpu`.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import pytest
import torch
from torch import Tensor

from chimera.ops import decay, delta, fused
from tests.kit import grads
from tests.reference.recurrences import delta as naive_delta
from tests.reference.recurrences import recurrence

needs_kernels = pytest.mark.skipif(
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


@needs_kernels
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


@needs_kernels
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


@needs_kernels
def test_fp16_has_no_room_for_sums_over_tokens() -> None:
    ones = torch.full((1, 1, 1100, WIDTH), 2.0, device=DEVICE).half()
    o, _ = decay.chunkwise(ones, ones, ones)
    assert o.max() == 1100 * WIDTH * 8  # the kernels would return it in fp16, as infinity


@needs_kernels
def test_what_the_kernels_do_not_have_stays_with_torch() -> None:
    wide = torch.zeros(1, 2, 8, WIDTH, device=DEVICE)
    assert not fused.suits(wide, wide, None)  # only torch computes float32 exactly
    assert not fused.suits(wide.half(), wide[..., :8].half(), None)
    assert fused.suits(wide.half(), wide.half(), None)


GPU = torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def afresh() -> Iterator[None]:
    fused.wrong.cache_clear()
    yield
    fused.wrong.cache_clear()


@pytest.mark.parametrize(
    ("capability", "triton", "wrong"),
    [((9, 0), "3.6.0", True), ((9, 0), "3.7.1", False), ((9, 0), "3.3.1", False),
     ((9, 0), "3.10.0", False), ((8, 0), "3.6.0", False), ((10, 0), "3.6.0", False)],
)  # fmt: skip
def test_where_triton_errs(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], triton: str, wrong: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(fused, "version", {"triton": triton}.__getitem__)
    assert fused.wrong(GPU) is wrong
    assert not fused.wrong(torch.device("cpu"))


@pytest.mark.parametrize("wrong", [True, False])
def test_decays_of_tokens_stay_with_torch_there(
    monkeypatch: pytest.MonkeyPatch, wrong: bool
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(fused, "_installed", lambda: True)
    monkeypatch.setattr(fused, "wrong", lambda device: wrong)
    half = torch.zeros(1, 2, 8, fused.NARROWEST).half()
    heads = torch.zeros(2)
    assert fused.suits(half, half, torch.zeros(1, 2, 8)) is not wrong
    assert fused.suits(half, half, heads.clone().requires_grad_()) is not wrong  # as of tokens
    assert fused.suits(half, half, heads)
    assert fused.suits(half, half, None)
