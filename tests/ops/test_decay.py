"""Decayed linear recurrence: every form equals the naive recurrence (SPEC M5, M6, M9)."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from chimera.ops import decay
from tests.kit import close, grads
from tests.ops.test_recurrences import leaves, same
from tests.reference.recurrences import both_sides, recurrence

DECAYS = ("none", "head", "token", "shared")


def inputs(t: int, kind: str = "token", *, b: int = 2, h: int = 3) -> list[Tensor | None]:
    """q, k, v, g, state: leaves in float64."""
    g = {
        "none": None,
        "head": -torch.rand(h).double(),
        "token": -2 * torch.rand(b, h, t).double(),
        "shared": -torch.rand(1, h, t).double(),
    }[kind]
    made = [torch.randn(b, h, t, 4), torch.randn(b, h, t, 4), torch.randn(b, h, t, 5)]
    made = [x.double() for x in made] + [g, torch.randn(b, h, 4, 5).double()]
    return leaves(made)


@pytest.mark.parametrize("kind", DECAYS)
@pytest.mark.parametrize("t", [1, 65])
class TestCausal:
    def test_parallel(self, t: int, kind: str) -> None:
        of = inputs(t, kind)
        same(decay.parallel(*of), recurrence(*of), of)

    @pytest.mark.parametrize("chunk", [4, 64])
    def test_chunkwise(self, t: int, kind: str, chunk: int) -> None:
        of = inputs(t, kind)
        same(decay.chunkwise(*of, chunk=chunk), recurrence(*of), of)
        got, none = decay.chunkwise(*of[:4], chunk=chunk)
        assert none is None
        same((got, none), (recurrence(*of[:4])[0], None), of[:4])


@pytest.mark.parametrize("kind", DECAYS)
def test_steps_and_chunks_of_any_length_continue(kind: str) -> None:
    q, k, v, g, state = of = inputs(65, kind)
    outputs = []
    for start, end in ((0, 1), (1, 30), (30, 31), (31, 32), (32, 65)):
        here = [x[:, :, start:end] for x in (q, k, v)]
        now = g if g is None or g.ndim == 1 else g[:, :, start:end]
        if end - start == 1:
            o, state = decay.step(*here, now, state)
        else:
            o, state = decay.chunkwise(*here, now, state, chunk=8)
        outputs.append(o)
    same((torch.cat(outputs, 2), state), recurrence(*of), of)


@pytest.mark.parametrize("kind", ["head", "token", "shared"])
@pytest.mark.parametrize(("t", "chunk"), [(1, 64), (2, 1), (33, 8)])
def test_bidirectional(t: int, kind: str, chunk: int) -> None:
    *of, _ = inputs(t, kind)
    want = both_sides(*of), None
    same(decay.chunkwise(*of, causal=False, chunk=chunk), want, of)
    same(decay.parallel(*of, causal=False), want, of)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("strength", [1.0, 1e4])
def test_no_decay_overflows_in_float32(strength: float, causal: bool) -> None:
    q, k, v, g, _ = (x.detach() for x in inputs(65))
    g = g * strength
    want = recurrence(q, k, v, g)[0] if causal else both_sides(q, k, v, g)
    single = [x.float().requires_grad_() for x in (q, k, v, g)]
    for chunk in (8, 65):
        o, _ = decay.chunkwise(*single, causal=causal, chunk=chunk)
        close(o.double(), want, 1e-4)
        assert all(torch.isfinite(x).all() for x in grads(o.sum(), single))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("chunk", [16, 64])
def test_a_chunk_that_forgets_all_costs_its_neighbours_no_digits(chunk: int, causal: bool) -> None:
    """float32; weights are not differences of sums near 60000, within chunks and between them."""
    q, k, v, _, _ = (x.detach().float() for x in inputs(128))
    g = torch.where(torch.arange(128) % 64 < 32, -2000.0, -0.01).expand(2, 3, 128).contiguous()
    wide = [x.double().requires_grad_() for x in (q, k, v, g)]
    single = [x.clone().requires_grad_() for x in (q, k, v, g)]
    want = recurrence(*wide)[0] if causal else both_sides(*wide)
    got = decay.chunkwise(*single, causal=causal, chunk=chunk)[0]
    assert (got - want).abs().max() < 2e-6 * want.abs().max()
    for x, y in zip(grads(got.sum(), single), grads(want.sum(), wide), strict=True):
        assert (x - y).abs().max() < 1e-5 * y.abs().max()


def test_bfloat16_accumulates_in_float32() -> None:
    q, k, v, g, state = (x.detach() for x in inputs(257, "head"))
    half = [x.bfloat16() for x in (q, k, v)]
    want, final = recurrence(*(x.double() for x in half), g / 100, state)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        o, s = decay.chunkwise(*half, g / 100, state.float())
        _, stepped = decay.step(*(x[:, :, :1] for x in half), g / 100, state.float())
    assert o.dtype == s.dtype == stepped.dtype == torch.float32
    close((s.double(), o.double()), (final, want), 1e-5)


@pytest.mark.parametrize("causal", [True, False])
def test_cost_is_linear_in_length(causal: bool) -> None:
    def flops(t: int) -> int:
        x = torch.zeros(1, 1, t, 4, requires_grad=True)
        with FlopCounterMode(display=False) as count:
            decay.chunkwise(x, x, x, torch.zeros(1), causal=causal, chunk=4)[0].sum().backward()
        return count.get_total_flops()

    assert flops(8192) < 4.1 * flops(2048)
