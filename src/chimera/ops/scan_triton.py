"""The selective scan of `ops.scan` in two kernels, forward and backward, in Triton.

A program walks the chunks of some channels of one sequence. In a chunk of tokens, with a = exp(Δ A)
and b = B Δ x, a scan by pairs computes all states, (a, b) then (a', b') being (a a', a' b + b'):

    h_t = a_t h_{t−1} + b_t,    g_t = C_t ȳ_t + a_{t+1} g_{t+1}  (from the right)

The forward pass stores the state before each chunk, the backward pass computes all else again. What
several programs would add to one number they write apart, so that results repeat to the bit.

Importing this module imports Triton. `scan` decides whether it serves.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from chimera.ops import scan
from chimera.ops.kernels import wrong


@triton.jit
def _then(a, b, next_a, next_b):  # type: ignore[no-untyped-def]
    return a * next_a, next_a * b + next_b


@triton.jit
def _scanned(x, delta, B, decay, h, token, real, wide, narrow, e, n):  # type: ignore[no-untyped-def]
    """The states [T N E] after the real ones of these tokens, given the state before them."""
    inputs = tl.load(x + token[:, None] * e + wide[None, :], real[:, None], other=0.0)
    size = tl.load(delta + token[:, None] * e + wide[None, :], real[:, None], other=0.0)
    write = tl.load(B + token[:, None] * n + narrow[None, :], real[:, None], other=0.0)
    a = tl.exp(size[:, None, :] * decay[None, :, :])
    b = write[:, :, None] * (size * inputs)[:, None, :]
    kept, added = tl.associative_scan((a, b), 0, _then)
    return added + kept * h[None, :, :]


@triton.jit(do_not_specialize=["t", "chunks"])
def _forward(  # type: ignore[no-untyped-def]
    x, delta, A, B, C, state, y, last, starts, t, chunks, e, n, T: tl.constexpr, N: tl.constexpr,
    E: tl.constexpr,
):  # fmt: skip
    batch, channel = tl.program_id(0).to(tl.int64), tl.program_id(1) * E
    rows, narrow, wide = tl.arange(0, T), tl.arange(0, N), channel + tl.arange(0, E)
    tile = narrow[:, None] * e + wide[None, :]
    decay, h = tl.load(A + tile), tl.load(state + batch * n * e + tile)
    x, delta, y = x + batch * t * e, delta + batch * t * e, y + batch * t * e
    B, C = B + batch * t * n, C + batch * t * n
    for c in range(chunks):
        tl.store(starts + (batch * chunks + c) * n * e + tile, h)
        token = c * T + rows
        states = _scanned(x, delta, B, decay, h, token, token < t, wide, narrow, e, n)
        real = (token < t)[:, None]
        read = tl.load(C + token[:, None] * n + narrow[None, :], real, other=0.0)
        tl.store(y + token[:, None] * e + wide[None, :], tl.sum(read[:, :, None] * states, 1), real)
        h = tl.sum(tl.where((rows == T - 1)[:, None, None], states, 0.0), 0)
    tl.store(last + batch * n * e + tile, h)


@triton.jit(do_not_specialize=["t", "chunks"])
def _backward(  # type: ignore[no-untyped-def]
    dy, dlast, x, delta, A, B, C, starts, dx, ddelta, dA, dB, dC, dstate, t, chunks, e, n,
    T: tl.constexpr, N: tl.constexpr, E: tl.constexpr,
):  # fmt: skip
    batch, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    rows, narrow, wide = tl.arange(0, T), tl.arange(0, N), block * E + tl.arange(0, E)
    tile = narrow[:, None] * e + wide[None, :]
    decay, carry = tl.load(A + tile), tl.load(dlast + batch * n * e + tile)
    x, delta, dy = x + batch * t * e, delta + batch * t * e, dy + batch * t * e
    dx, ddelta = dx + batch * t * e, ddelta + batch * t * e
    B, C = B + batch * t * n, C + batch * t * n
    part = (batch * tl.num_programs(1) + block) * t * n
    to_decay = tl.zeros((N, E), tl.float32)
    for i in range(chunks):
        c = chunks - 1 - i
        token = c * T + rows
        real = (token < t)[:, None]
        h = tl.load(starts + (batch * chunks + c) * n * e + tile)
        had = (rows > 0) & (token <= t)
        before = _scanned(x, delta, B, decay, h, token - 1, had, wide, narrow, e, n)
        by_channel = token[:, None] * e + wide[None, :]
        by_state = token[:, None] * n + narrow[None, :]
        inputs = tl.load(x + by_channel, real, other=0.0)
        size = tl.load(delta + by_channel, real, other=0.0)
        write = tl.load(B + by_state, real, other=0.0)[:, :, None]
        a = tl.exp(size[:, None, :] * decay[None, :, :])
        states = a * before + write * (size * inputs)[:, None, :]
        out = tl.load(dy + by_channel, real, other=0.0)[:, None, :]
        tl.store(dC + part + by_state, tl.sum(states * out, 2), real)
        inside = ((rows < T - 1) & (token + 1 < t))[:, None]
        after = tl.load(delta + by_channel + e, inside, other=0.0)[:, None, :]
        read = tl.load(C + by_state, real, other=0.0)[:, :, None]
        pairs = tl.exp(after * decay[None, :, :]), read * out
        kept, added = tl.associative_scan(pairs, 0, _then, reverse=True)
        g = added + kept * carry[None, :, :]
        carry = tl.sum(tl.where((rows == 0)[:, None, None], a * g, 0.0), 0)
        q = g * a * before
        to_decay += tl.sum(q * size[:, None, :], 0)
        to_input = tl.sum(write * g, 1)
        to_size = tl.sum(q * decay[None, :, :], 1) + to_input * inputs
        tl.store(dx + by_channel, to_input * size, real)
        tl.store(ddelta + by_channel, to_size, real)
        tl.store(dB + part + by_state, tl.sum(g * (size * inputs)[:, None, :], 2), real)
    tl.store(dA + batch * n * e + tile, to_decay)
    tl.store(dstate + batch * n * e + tile, carry)


def forward(inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...]) -> None:
    """Write y, last, starts; inputs are x, Δ, A [n e], B, C and the state."""
    _launch(_forward, inputs[0], inputs[2], *inputs, *outputs)


def backward(inputs: tuple[Tensor, ...], grads: tuple[Tensor, ...]) -> None:
    """Write gradients as `scan.backward` makes them; inputs are those it is given."""
    _launch(_backward, inputs[0], inputs[4], *inputs, *grads)


def _launch(kernel: object, x: Tensor, A: Tensor, *tensors: Tensor) -> None:
    (b, t, e), n = x.shape, len(A)
    grid, chunks = (b, e // scan.TILE), -(-t // scan.CHUNK)
    with torch.cuda.device_of(x):
        kernel[grid](  # type: ignore[index]
            *tensors, t, chunks, e, n, T=scan.CHUNK, N=n, E=scan.TILE, num_warps=4
        )


def fault(device: torch.device, n: int) -> str | None:
    """Why the kernels do not serve on a device, in one line; None if they do.

    Compares outputs and gradients with torch's own.

    Args:
        device: of the inputs.
        n: states of a channel.
    """
    generator = torch.Generator().manual_seed(0)
    e, t = 2 * scan.TILE, scan.CHUNK + 5
    shapes = (2, t, e), (2, t, e), (e, n), (2, t, n), (2, t, n), (2, n, e)
    drawn = [torch.randn(shape, generator=generator) for shape in shapes]
    drawn[1], drawn[2] = drawn[1].exp(), -drawn[2].exp()
    leaves = [x.to(device).requires_grad_() for x in drawn]
    outputs = scan.by_kernels(*leaves), scan.by_torch(*leaves)
    sums = (y.square().sum() + h.square().sum() for y, h in outputs)
    found = [torch.autograd.grad(one, leaves) for one in sums]
    return wrong((*outputs[0], *found[0]), (*outputs[1], *found[1]), 1e-4)
