"""Neural-ODE attention: solver, three backward passes, memory, decoding, positions."""

from __future__ import annotations

import math
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar

import pytest
import torch
import torchdiffeq
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from chimera.contract import Position
from chimera.errors import UserError
from chimera.mixer import ode
from chimera.mixer.ode import ODEAttention
from chimera.ops.rk4 import CLASSIC, THREE_EIGHTHS, Tableau, solve
from tests.kit import close, ctx, grads, ragged
from tests.mixer import forms
from tests.reference.attention import algorithm_2, ode_slope


def rows(*shape: int) -> Tensor:
    return torch.randn(*shape, 32, dtype=torch.float64)


def decay(z: Tensor, t: float | Tensor, call: int) -> Tensor:
    """dz/dt = −z² (1 + t), whose solution from z(0) = 1 is z(1) = 1/(1 + 3/2)."""
    return -z * z * (1 + float(t))


@pytest.mark.parametrize("tableau", [CLASSIC, THREE_EIGHTHS])
def test_the_error_falls_with_the_fourth_power_of_the_step(tableau: Tableau) -> None:
    z = torch.ones(1, dtype=torch.float64)
    errors = [
        abs(solve(decay, z, n, measure=torch.sum, tableau=tableau)[0].item() - 0.4)
        for n in (16, 32, 64)
    ]
    for coarse, fine in pairwise(errors):
        assert math.log2(coarse / fine) == pytest.approx(4, abs=0.3)


def test_three_eighths_is_what_torchdiffeq_calls_rk4() -> None:
    z = torch.rand(5, dtype=torch.float64)
    grid = torch.linspace(0, 1, 4, dtype=z.dtype)
    theirs = torchdiffeq.odeint(lambda t, z: decay(z, t, 0), z, grid, method="rk4")[-1]
    close(solve(decay, z, 3, measure=torch.sum, tableau=THREE_EIGHTHS)[0], theirs, 1e-14)
    ours = solve(decay, z, 3, measure=torch.sum, tableau=CLASSIC)[0]
    assert (ours - theirs).abs().max() > 1e-6


class Turn(Position):
    """Position with all three hooks and a parameter, to test that each hook is used and learned."""

    provides = frozenset({"embed", "rotate", "bias"})

    def __init__(self, site: Any, heads: int, head_dim: int) -> None:
        super().__init__(site, heads, head_dim)
        self.pitch = torch.nn.Parameter(torch.linspace(0.1, 0.4, heads))

    def rotate(self, q: Tensor, k: Tensor, pos: Tensor) -> tuple[Tensor, Tensor]:
        angle = pos[:, None, :, None].to(q.dtype)
        return q * angle.cos(), k * angle.cos()

    def bias(self, pos_q: Tensor, pos_k: Tensor) -> Tensor:
        distance = (pos_q[:, :, None] - pos_k[:, None, :]).abs()
        return -self.pitch[:, None, None] * distance[:, None]


class TestPieces(forms.Pieces):
    """What the reference has not."""

    mixer, given = ODEAttention, {"alpha": 0.5, "omega": 2.0}
    options: ClassVar[list[Any]] = [{"kv_heads": 2, "position": Turn}]
    encoders, constant, wide, tokens, tol = True, False, False, (17,), 1e-9

    @staticmethod
    def stir(m: Any) -> None:
        """Initial weights times 1.5, so that the flow is not linear."""
        for p in m.parameters():
            p.mul_(1.5) if p.ndim == 2 else p.add_(0.1 * torch.randn_like(p))


class TestForms(TestPieces, forms.Forms):
    options: ClassVar = [{"steps": 1}, {"steps": 4, "backprop": "checkpoint"}]
    tokens = (7,)

    @staticmethod
    def oracle(m: Any, x: Tensor) -> Tensor:
        """The increment of each text."""
        slope = partial(ode_slope, m)
        return torch.stack([algorithm_2(slope, row, m.steps) - row for row in x])


build = TestPieces.build


def test_regulariser_is_equation_52_per_token() -> None:
    m, x = build(causal=False, steps=2), rows(3, 5)
    with torch.no_grad():
        z, found = x[0], []
        for i in range(2):
            found.append(ode_slope(m, z, i / 2).square().sum(-1).mean())
            z = algorithm_2(lambda z, t, i=i: ode_slope(m, z, i / 2 + t / 2) / 2, z, 1)
        close(m(x[:1], ctx(tokens=5)).aux["ode"], sum(found) / 2)
        # A mean over tokens does not depend on the batch.
        alone = [m(x[i : i + 1], ctx(tokens=5)).aux["ode"] for i in range(3)]
        close(m(x, ctx(tokens=5)).aux["ode"], sum(alone) / 3)
        short = m(x[:1, :2], ctx(tokens=2)).aux["ode"]  # padding does not count
        padded = m(x[:2], ctx(ragged([2, 5], left=False))).aux["ode"]
        close(padded, (2 * short + 5 * alone[1]) / 7)


def ways(m: ODEAttention, x: Tensor, weight: Tensor) -> dict[str, tuple[Tensor, ...]]:
    """Output, regulariser and all gradients of each of the three."""
    found = {}
    for way in ("direct", "checkpoint", "adjoint"):
        m.backprop = way
        out = m(x, ctx(tokens=x.shape[1]))
        loss = (out.y * weight).sum() + out.aux["ode"]
        found[way] = (out.y, out.aux["ode"], *grads(loss, [x, *m.parameters()]))
    return found


@pytest.mark.parametrize("causal", [True, False])
def test_three_ways_back_agree(causal: bool) -> None:
    """checkpoint equals direct exactly; the error of adjoint falls with the fourth power of Δt."""
    x, weight = rows(2, 6).requires_grad_(), rows(2, 6)
    errors = []
    for steps in (8, 16):
        found = ways(build(causal, steps=steps), x, weight)
        close(found["direct"], found["checkpoint"], 1e-14)
        pairs = zip(found["direct"], found["adjoint"], strict=True)
        errors.append(max(((a - b).abs().max() / a.abs().max()).item() for a, b in pairs))
    assert errors[1] < 1e-4
    assert math.log2(errors[0] / errors[1]) > 3


def test_adjoint_gives_one_function_with_and_without_gradients() -> None:
    m, x = build(steps=3, backprop="adjoint"), rows(2, 6)
    out = m(x, ctx(tokens=6))
    with torch.no_grad():
        close(m(x, ctx(tokens=6)).y, out.y, 1e-13)
        close(m(x, ctx(tokens=6), m.init_state(2)).y, out.y, 1e-13)


def kept(m: ODEAttention, x: Tensor) -> int:
    """Numbers that the forward pass stores for the backward pass, without weights."""
    own, seen = {p.data_ptr() for p in m.parameters()}, {}

    def pack(t: Tensor) -> Tensor:
        if t.data_ptr() not in own:
            seen[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes() // t.element_size()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        held = m(x, ctx(tokens=x.shape[1])).y
    assert held.requires_grad
    return sum(seen.values())


def test_memory_is_flat_in_steps() -> None:
    """One state of t·d numbers per step; `direct` stores four attentions."""
    x = rows(1, 32).requires_grad_()
    slope = {}
    for way in ("direct", "checkpoint", "adjoint"):
        few, many = (kept(build(steps=n, backprop=way), x) for n in (4, 12))
        slope[way] = (many - few) / 8 / x.numel()
    assert slope["direct"] > 20
    assert slope["checkpoint"] <= 1.1
    assert slope["adjoint"] <= 2.1


@pytest.mark.parametrize("backprop", ["direct", "checkpoint", "adjoint"])
def test_positions_are_honoured_and_learned(backprop: str) -> None:
    m, x = build(True, position=Turn, steps=12, backprop=backprop), rows(2, 6)
    without = build(True, steps=12, backprop=backprop)
    assert (m(x, ctx(tokens=6)).y - without(x, ctx(tokens=6)).y).abs().max() > 1e-3
    names = [name for name, _ in m.named_parameters()]
    slopes = grads(m(x, ctx(tokens=6)).y.square().sum(), m)
    found = dict(zip(names, slopes, strict=True))
    m.backprop = "direct"
    expected = grads(m(x, ctx(tokens=6)).y.square().sum(), [m.position.pitch])[0]
    close(found["position.pitch"], expected, 1e-4)
    assert all(g.any() for g in found.values())


def test_adjoint_without_torchdiffeq_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ode, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"chimera-lm\[ode\] or use backprop=direct or checkpoint"):
        build(backprop="adjoint")
    build(backprop="checkpoint")


@pytest.mark.parametrize("backprop", ["checkpoint", "adjoint"])
def test_it_works_inside_a_checkpointed_block(backprop: str) -> None:
    m, x = build(backprop=backprop), rows(2, 6).requires_grad_()

    def loss(z: Tensor) -> Tensor:
        out = m(z, ctx(tokens=6))
        return out.y.square().sum() + out.aux["ode"]

    of = [x, *m.parameters()]
    close(grads(loss(x), of), grads(checkpoint(loss, x, use_reentrant=False), of), 1e-13)
