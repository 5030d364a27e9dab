"""Recurrences by chunks: every form is the definition, at any decay, and float32 keeps its digits.

The tests of the mixers hold each to its definition too, with projections and padding.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from chimera.ops import channels, decay, delta, dplr, log_linear, mesa, path, ssd
from chimera.ops.carry import carry
from tests.kit import close, grads
from tests.reference import recurrences as reference

Result = tuple[Tensor, Tensor]
Inputs = list[Tensor | None]
#: Largest difference, absolute and relative.
EXACT = 1e-10


def of_ssd(g: Tensor, k: int, v: int) -> Inputs:
    """q, k, v, g, Δ, state: two groups of heads that share queries and keys."""
    b, h, t = g.shape
    q, keys = torch.randn(2, b, h // 2, t, k)
    return [q, keys, torch.randn(b, h, t, v), g, torch.rand(b, h, t), torch.randn(b, h, k, v)]


def of_decay(kind: str) -> Callable[[Tensor, int, int], Inputs]:
    """q, k, v, g, state with a decay of this kind."""

    def made(g: Tensor, k: int, v: int) -> Inputs:
        b, h, t = g.shape
        chosen = {"none": None, "head": g[0, :, 0], "token": g, "shared": g[:1]}[kind]
        q, keys = torch.randn(2, b, h, t, k)
        return [q, keys, torch.randn(b, h, t, v), chosen, torch.randn(b, h, k, v)]

    return made


def of_channels(g: Tensor, k: int, v: int) -> Inputs:
    """q, k, v, g, state."""
    b, h, t, _ = g.shape
    return [*torch.randn(2, b, h, t, k), torch.randn(b, h, t, v), g, torch.randn(b, h, k, v)]


def of_kda(g: Tensor, k: int, v: int) -> Inputs:
    """q, k, v, a, b, g, state, as of Kimi Delta Attention: b is k."""
    q, keys, values, _, s = of_channels(g, k, v)
    keys = F.normalize(keys, dim=-1)
    return [q, keys, values, -torch.rand(*g.shape[:3], 1) * keys * g.exp(), None, g, s]


def of_rwkv(g: Tensor, k: int, v: int) -> Inputs:
    """The same, as of RWKV-7."""
    q, keys, values, _, s = of_channels(g, k, v)
    erased = F.normalize(torch.randn(g.shape), dim=-1)
    return [q, keys, values, -erased, torch.rand(g.shape) * erased, g, s]


def of_delta(g: Tensor, k: int, v: int, steps: int = 2) -> Inputs:
    """q, k, v, β, g, state of `steps` writes a token."""
    b, h, t = g.shape
    keys = F.normalize(torch.randn(b, h, t, steps, k), dim=-1)
    values, beta = torch.randn(b, h, t, steps, v), torch.rand(b, h, t, steps, 1)
    return [torch.randn(b, h, t, k), keys, values, beta, g, torch.randn(b, h, k, v)]


def of_mesa(g: Tensor, k: int, v: int) -> Inputs:
    """q, k, v, β, g, ridge, state."""
    b, h, t = g.shape
    q, keys = F.normalize(torch.randn(2, b, h, t, k), dim=-1)
    s = torch.randn(b, h, k, k)
    state = torch.cat([s @ s.mT, torch.randn(b, h, k, v)], -1)
    values, beta = torch.randn(b, h, t, v), torch.rand(b, h, t)
    return [q, keys, values, beta, g, 0.5 + torch.rand(h, k), state]


def each_head(q: Tensor, k: Tensor, v: Tensor, g: Tensor, size: Tensor, s: Tensor) -> Result:
    """A head at a time, each with its own copy of q and k."""
    q, k = (y.repeat_interleave(v.shape[1] // y.shape[1], 1) for y in (q, k))
    return reference.recurrence(q, k, v * size[..., None], g, s)


def low_rank(q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor | None, *rest: Tensor) -> Result:
    return reference.low_rank(q, k, v, a, k if b is None else b, *rest)


class Recurrence(NamedTuple):
    """An operation, its definition, its inputs of g, and whether g is per channel; place of g."""

    op: ModuleType
    oracle: Callable[..., Result]
    make: Callable[[Tensor, int, int], Inputs]
    wide: bool
    at: int

    def inputs(self, t: int, k: int, v: int, change: Callable[[Tensor], Tensor]) -> Inputs:
        """Decays differ from token to token, some are near 0; `change` makes them stronger."""
        g = torch.rand(2, 2, t, k) if self.wide else torch.rand(2, 2, t)
        return self.make(change(-(g**4)), k, v)


RECURRENCES = {
    "ssd": Recurrence(ssd, each_head, of_ssd, False, 3),
    "channels": Recurrence(channels, reference.decayed, of_channels, True, 3),
    "kda": Recurrence(dplr, low_rank, of_kda, True, 5),
    "rwkv": Recurrence(dplr, low_rank, of_rwkv, True, 5),
    "delta": Recurrence(delta, reference.delta, of_delta, False, 4),
    "mesa": Recurrence(mesa, reference.mesa, of_mesa, False, 4),
}
DECAYS = ("none", "head", "token", "shared")
RECURRENCES |= {
    kind: Recurrence(decay, reference.recurrence, of_decay(kind), False, 3) for kind in DECAYS
}


def named(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("of", [RECURRENCES[n] for n in names], ids=names)


def leaves(inputs: Inputs, dtype: torch.dtype = torch.float64) -> Inputs:
    """The same values as leaves."""
    return [None if x is None else x.to(dtype).detach().requires_grad_() for x in inputs]


def same(got: Any, want: Any, inputs: Inputs) -> None:
    """Compare outputs, final states, and gradients of both with respect to all inputs."""
    close(got, want, EXACT)
    weights = [torch.randn_like(x) / x.numel() ** 0.5 for x in got if x is not None]
    losses = [
        sum((x * w).sum() for x, w in zip(pair, weights, strict=False)) for pair in (got, want)
    ]
    over = [x for x in inputs if x is not None]
    close(grads(losses[0], over), grads(losses[1], over), EXACT)


def in_pieces(call: Callable[..., Any], inputs: Inputs, width: int, **options: Any) -> Result:
    """`width` tokens at a time, with the state handed on."""
    *rest, state = inputs
    reads: list[Tensor] = []
    for at in range(0, rest[0].shape[2], width):
        here = (x if x is None or x.ndim < 3 else x[:, :, at : at + width] for x in rest)
        y, state = call(*here, state, **options)
        reads.append(y)
    return torch.cat(reads, 2), state


widths, chunks = st.integers(1, 5), st.sampled_from([1, 2, 8, 16, 64])
#: Largest decay of a token: none, usual, and beyond what float64 can hold (e⁻⁷⁴⁵ is 0).
strengths = st.sampled_from([0.0, 1.0, 30.0, 3000.0])


@named("ssd", "channels", "kda", "rwkv", "delta", *DECAYS)
@given(st.integers(1, 70), widths, widths, chunks, strengths)
def test_every_form(of: Recurrence, t: int, k: int, v: int, chunk: int, strength: float) -> None:
    """Chunkwise, in pieces and token by token; without a state, no state is returned."""
    torch.manual_seed(t)
    x = leaves(of.inputs(t, k, v, lambda g: strength * g))
    want = of.oracle(*x)
    same(of.op.chunkwise(*x, chunk=chunk), want, x)
    same(in_pieces(of.op.step, x, 1), want, x)
    same(in_pieces(of.op.chunkwise, x, 7, chunk=chunk), want, x)
    y, none = of.op.chunkwise(*x[:-1], chunk=chunk)
    assert none is None
    close(y, of.oracle(*x[:-1], torch.zeros_like(x[-1]))[0], EXACT)


@named("channels", "kda", "rwkv", *DECAYS)
@pytest.mark.parametrize("t", [1, 150])
def test_parallel_and_chunkwise(of: Recurrence, t: int) -> None:
    x = leaves(of.inputs(t, 4, 3, lambda g: g))
    want = of.oracle(*x)
    same(of.op.chunkwise(*x, chunk=channels.power_of_two(t)), want, x)  # one chunk
    # 4-token chunks: more than 32 of them, so that their states are combined in groups.
    same(of.op.chunkwise(*x, chunk=4), want, x)


def forgets(g: Tensor) -> Tensor:
    """Half of the tokens decay by e⁻⁵⁰⁰: over a chunk, the factors exp(±G) of others overflow."""
    return torch.where(torch.rand_like(g) < 0.5, -500.0, g)


@named("channels", "kda", "rwkv", "mesa")
def test_float32_forgets_by_any_factor(of: Recurrence) -> None:
    x = leaves(of.inputs(256, 8, 8, forgets), torch.float32)
    got, want = of.op.chunkwise(*x), of.oracle(*leaves(x))
    bound = 2e-5 if of.op is mesa else 1e-5
    assert (got[0] - want[0]).abs().max() < bound * want[0].abs().max()
    (slope,) = grads(got[0].sin().sum(), [x[of.at]])
    assert slope.isfinite().all()


def beside_strong(g: Tensor) -> Tensor:
    """Tokens that forget by e⁻⁶⁰⁰⁰⁰ between others that keep everything."""
    g = 0.01 * g
    g[:, :, ::192] = -6e4
    return g


@pytest.fixture(params=[(), ("cpu",)], ids=["many", "few"])
def _kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a CPU, and in few kernels as on a GPU."""
    monkeypatch.setattr("chimera.ops.together.DEVICES", request.param)


@named("ssd", "mesa")
@pytest.mark.usefixtures("_kernels")
@pytest.mark.parametrize("strength", [1.0, 3000.0])
def test_chunks_in_few_kernels(of: Recurrence, strength: float) -> None:
    x = leaves(of.inputs(70, 4, 3, lambda g: strength * g))
    same(of.op.chunkwise(*x, chunk=16), of.oracle(*x), x)


@named("ssd", "channels", "delta")
@pytest.mark.usefixtures("_kernels")
def test_float32_keeps_its_digits_beside_strong_decays(of: Recurrence) -> None:
    """Weights as differences of sums over a chunk, or over chunks, would be off by 0.6 %."""
    x = leaves(of.inputs(1024, 8, 8, beside_strong), torch.float32)
    got, want = of.op.chunkwise(*x), of.oracle(*leaves(x))
    for mine, exact in zip(got, want, strict=True):
        assert (mine - exact).abs().max() < 2e-6 * exact.abs().max()


@pytest.mark.usefixtures("_kernels")
@pytest.mark.parametrize("n", [1, 33, 1100])
def test_states_are_carried_over_any_number_of_chunks(n: int) -> None:
    """Up to two levels of groups of 32; with and without a first state."""
    of = [x.double().requires_grad_() for x in (torch.randn(2, n, 3), -torch.rand(2, n))]
    first = torch.randn(2, 3).double().requires_grad_()
    for start in (None, first):
        state, states = torch.zeros(2, 3).double() if start is None else start, []
        for i in range(n):
            states.append(state)
            state = of[1][:, i, None].exp() * state + of[0][:, i]
        same(carry(*of, start), (torch.stack(states, 1), state), [*of, first])


def test_a_chunk_is_a_power_of_two() -> None:
    with pytest.raises(ValueError, match="chunk=48 is no power of two: choose 64"):
        channels.chunkwise(*of_channels(torch.zeros(1, 1, 3, 2), 2, 2), chunk=48)


def test_a_full_step_writes_and_a_double_step_reflects() -> None:
    q, k, v, _, _, h = leaves(of_delta(torch.zeros(1, 1, 1), 4, 4, steps=1))
    k = F.normalize(k, dim=-1)
    q, one = k[:, :, :, 0], torch.ones(1, 1, 1, 1, 1).double()
    close(delta.chunkwise(q, k, v, one, None, h)[0], v[:, :, :, 0])
    reflected = delta.chunkwise(q, k, 0 * v, 2 * one, None, h)[0]
    close(reflected, -q @ h)  # a negative eigenvalue


def paper(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, *, sign: int, own: bool) -> Tensor:
    """One chunk by TPTT eq. 12-15, T = I + `sign`·tril; `own`: reads after the update (E1)."""
    t = torch.eye(len(k)).to(k) + sign * ((k * beta) @ k.T).tril(-1)
    y = torch.linalg.solve(t, v * beta)  # the state before the chunk is zero
    return (q @ k.T).tril() @ y if own else q @ torch.zeros(k.shape[1], v.shape[1]).to(k)


def test_e1_minus_and_chunk_start_reads_are_not_the_recurrence() -> None:
    q, k, v, beta, *_ = leaves(of_delta(torch.zeros(1, 1, 24), 6, 6, steps=1))
    right = delta.chunkwise(q, k, v, beta, chunk=24)[0][0, 0]
    one = (q[0, 0], k[0, 0, :, 0], v[0, 0, :, 0], beta[0, 0, :, 0])
    close(paper(*one, sign=1, own=True), right)
    wrong = [paper(*one, sign=-1, own=True), paper(*one, sign=1, own=False)]
    scale = right.abs().max()
    assert all((w - right).abs().max() > 0.1 * scale for w in wrong)


@pytest.mark.parametrize("keys", ["random", "one"])
def test_the_delta_rule_in_float32_stays_near_float64(keys: str) -> None:
    """β up to 2 with equal keys gives the worst-conditioned triangular matrix."""
    q, k, v, beta, g, h = of_delta(-torch.rand(2, 2, 513), 6, 6)
    if keys == "one":
        k = k[:, :, :1, :1].expand_as(k)
    x = [y.double() for y in (q, k, v, 2 * beta, g, h)]
    wide, state = delta.chunkwise(*x)
    narrow = delta.chunkwise(*(y.float() for y in x))
    torch.testing.assert_close(narrow, (wide.float(), state.float()), rtol=1e-4, atol=1e-4)


def test_the_delta_rule_in_low_precision_accumulates_in_float32() -> None:
    x = leaves(of_delta(-torch.rand(2, 2, 70), 6, 6, steps=1), torch.bfloat16)
    wide = delta.chunkwise(*leaves(x, torch.float32))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, h = delta.chunkwise(*x)
    assert y.dtype == h.dtype == torch.float32
    close((y, h), wide, 1e-6)


@pytest.mark.parametrize("tolerance", [1e-2, 1e-4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_tolerance_of_mesa_bounds_its_error(dtype: torch.dtype, tolerance: float) -> None:
    """With keys as values o = H x = q − Λ x: a residual r moves it by r − Λ (H + Λ)⁻¹ r."""
    x: list[Any] = of_mesa(torch.full((2, 2, 200), -0.02), 16, 16)
    q, k, _, beta, g, ridge, _ = (y.to(dtype) for y in x)
    y, _ = mesa.chunkwise(q, k, k, beta, g, ridge, solver=mesa.Solver(30, tolerance))
    none = torch.zeros(2, 2, 16, 32, dtype=torch.float64)
    want, _ = reference.mesa(*(x.double() for x in (q, k, k, beta, g, ridge)), none)
    error = (y - want).norm(dim=-1).max()
    assert tolerance / 10 < error < (1 + ridge.max() / ridge.min()) * tolerance


def test_a_token_of_mesa_ends_alone() -> None:
    """Its numbers are the same beside a token that takes more steps."""
    x: list[Any] = [y.double() for y in of_mesa(-torch.rand(2, 2, 16), 8, 3)]
    loose = mesa.Solver(30, 1e-3)
    y, _ = mesa.chunkwise(*x, solver=loose)
    for t in (3, 15):
        head = [z[:, :, : t + 1] for z in x[:5]]
        close(mesa.chunkwise(*head, *x[5:], solver=loose)[0][:, :, t], y[:, :, t], 1e-12)


@pytest.mark.parametrize("scale", [1e-30, 1e-20, 1e20])
def test_gradients_of_mesa_of_any_size(scale: float) -> None:
    """float32: squares of gradients below 1e-19 underflow, those above 1e19 overflow."""
    x: list[Any] = leaves(of_mesa(-(torch.rand(2, 2, 33) ** 4), 4, 3), torch.float32)
    y, last = mesa.chunkwise(*x, chunk=8)
    loss = y.sin().sum() + last.sin().sum()
    for got, want in zip(grads(scale * loss, x), grads(loss, x), strict=True):
        close(got / scale, want, 1e-4)


def test_log_linear_in_float32_forgets_by_any_factor() -> None:
    q, k = torch.randn(2, 2, 2, 256, 8)
    g = forgets(-(torch.rand(2, 4, 256) ** 4)).requires_grad_()
    v, scale = torch.randn(2, 4, 256, 8), torch.rand(2, 4, 256, 5)
    got, _ = log_linear.chunkwise(q, k, v, g, scale)
    want, _ = log_linear.chunkwise(*(y.double() for y in (q, k, v, g, scale)))
    assert (got - want).abs().max() < 1e-5 * want.abs().max()
    (slope,) = grads(got.sin().sum(), [g])
    assert slope.isfinite().all()


def test_path_in_float32_over_many_tokens() -> None:
    q, k, v = torch.randn(2, 4, 300, 16), torch.randn(2, 2, 300, 16), torch.randn(2, 2, 300, 16)
    w, beta = F.normalize(torch.randn(2, 2, 300, 16), dim=-1), 2 * torch.rand(2, 2, 300)
    x = [y.requires_grad_() for y in (q, k, v, w, beta)]
    visible = torch.ones(300, 300, dtype=torch.bool).tril()[None, None]
    got = path.attend(*x, visible=visible).y
    exact = path.attend(*(y.double() for y in x), visible=visible).y
    assert (got - exact).abs().max() < 1e-5
    assert all(g.isfinite().all() for g in grads(got.sin().sum(), x))


@pytest.mark.parametrize("kind", ["head", "token", "shared"])
@pytest.mark.parametrize(("t", "chunk"), [(1, 64), (2, 1), (33, 8)])
def test_decay_in_both_directions(t: int, kind: str, chunk: int) -> None:
    *of, _ = leaves(RECURRENCES[kind].inputs(t, 4, 5, lambda g: g))
    want = reference.both_sides(*of), None
    same(decay.chunkwise(*of, causal=False, chunk=chunk), want, of)
    same(decay.chunkwise(*of, causal=False, chunk=t), want, of)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("strength", [1.0, 1e4])
def test_no_decay_overflows_in_float32(strength: float, causal: bool) -> None:
    q, k, v, g, _ = (x.double() for x in of_decay("token")(-2 * torch.rand(2, 3, 65), 4, 5))
    g = g * strength
    want = reference.recurrence(q, k, v, g)[0] if causal else reference.both_sides(q, k, v, g)
    single = [x.float().requires_grad_() for x in (q, k, v, g)]
    for chunk in (8, 65):
        o, _ = decay.chunkwise(*single, causal=causal, chunk=chunk)
        close(o.double(), want, 1e-4)
        assert all(torch.isfinite(x).all() for x in grads(o.sum(), single))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("chunk", [16, 64])
def test_a_chunk_that_forgets_all_costs_its_neighbours_no_digits(chunk: int, causal: bool) -> None:
    """float32; weights are not differences of sums near 60000, within chunks and between them."""
    q, k, v, *_ = of_decay("token")(torch.zeros(2, 3, 128), 4, 5)
    g = torch.where(torch.arange(128) % 64 < 32, -2000.0, -0.01).expand(2, 3, 128).contiguous()
    wide = [x.double().requires_grad_() for x in (q, k, v, g)]
    single = [x.clone().requires_grad_() for x in (q, k, v, g)]
    want = reference.recurrence(*wide)[0] if causal else reference.both_sides(*wide)
    got = decay.chunkwise(*single, causal=causal, chunk=chunk)[0]
    assert (got - want).abs().max() < 2e-6 * want.abs().max()
    for x, y in zip(grads(got.sum(), single), grads(want.sum(), wide), strict=True):
        assert (x - y).abs().max() < 1e-5 * y.abs().max()


def test_decay_in_bfloat16_accumulates_in_float32() -> None:
    q, k, v, g, state = of_decay("head")(-torch.rand(2, 3, 257), 4, 5)
    half = [x.bfloat16() for x in (q, k, v)]
    wide = [x.double() for x in (*half, g / 100, state)]
    want, final = reference.recurrence(*wide)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        o, s = decay.chunkwise(*half, g / 100, state)
        _, stepped = decay.step(*(x[:, :, :1] for x in half), g / 100, state)
    assert o.dtype == s.dtype == stepped.dtype == torch.float32
    close((s.double(), o.double()), (final, want), 1e-5)


@pytest.mark.parametrize("causal", [True, False])
def test_cost_of_decay_is_linear_in_length(causal: bool) -> None:
    def flops(t: int) -> int:
        x = torch.zeros(1, 1, t, 4, requires_grad=True)
        with FlopCounterMode(display=False) as count:
            decay.chunkwise(x, x, x, torch.zeros(1), causal=causal, chunk=4)[0].sum().backward()
        return count.get_total_flops()

    assert flops(8192) < 4.1 * flops(2048)
