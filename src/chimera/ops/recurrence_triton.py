"""Chunkwise recurrences of `ops.recurrence` in two kernels, forward and backward, in Triton.

A program walks the chunks of one sequence with its state in registers. In a chunk of C tokens, with
G the sums of g since its start, D_sr = exp(G_s − G_r) for r ≤ s, h the state before it:

    y  = β V, or for the delta rule (I + tril(β K Kᵀ ⊙ D, −1))⁻¹ β (V − exp(G) K h)
    o  = exp(G) Q h + (Q Kᵀ ⊙ D) y + skip V,      h ← exp(G_C) h + (exp(G_C − G) K)ᵀ y

The forward pass stores h in bf16, the backward pass computes all else again. Sums of g come in
float64, so that their differences are right however much a chunk forgets. Products take factors in
TF32, which has three bits more than bf16, and sum in float32. The inverse merges pairs of inverted
blocks, from single tokens upwards: unlike powers of the matrix, its entries stay bounded.

The gradient of G follows from the others: a token reads with exp(G) and writes with exp(−G), so it
is q·dq + k·dk as a reader − k·dk as a writer.

Importing this module imports Triton. `recurrence` decides whether it serves.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from chimera.ops import delta, recurrence, ssd
from chimera.ops.kernels import last_apart, wrong


@triton.jit
def _dot(a, b):  # type: ignore[no-untyped-def]
    return tl.dot(a, b, input_precision="tf32")


@triton.jit
def _decays(g, rows, C: tl.constexpr):  # type: ignore[no-untyped-def]
    """Between tokens [C C], from the start [C 1] and to the end [C 1] of a chunk, and over it."""
    total = tl.load(g + rows)
    last = tl.load(g + C - 1)
    inside = tl.exp((total[:, None] - total[None, :]).to(tl.float32))
    inside = tl.where(rows[:, None] >= rows[None, :], inside, 0.0)
    start = tl.exp(total.to(tl.float32))[:, None]
    end = tl.exp((last - total).to(tl.float32))[:, None]
    return inside, start, end, tl.exp(last.to(tl.float32))


@triton.jit
def _below(x, rows):  # type: ignore[no-untyped-def]
    return tl.where(rows[:, None] > rows[None, :], x, 0.0)


@triton.jit
def _inverse(a, rows, LEVELS: tl.constexpr):  # type: ignore[no-untyped-def]
    """(I + a)⁻¹ of a strictly lower triangular matrix."""
    x = tl.where(rows[:, None] == rows[None, :], 1.0, 0.0)
    x -= tl.where((rows[:, None] ^ rows[None, :]) == 1, a, 0.0)
    for level in range(1, LEVELS):  # not unrolled: it is most of the kernel
        pair = ((rows[:, None] >> level) ^ (rows[None, :] >> level)) == 1
        x -= _dot(_dot(x, tl.where(pair, a, 0.0)), x)
    return x


@triton.jit
def _solved(key, value, size, h, inside, start, rows, LEVELS: tl.constexpr):  # type: ignore[no-untyped-def]
    """The inverse, y by the delta rule, and y / size as the token itself sees it."""
    meet = _below(_dot(key, tl.trans(key)) * inside, rows)
    apart = _inverse(size * meet, rows, LEVELS)
    missing = value - start * _dot(key, h)
    y = _dot(apart, size * missing)
    return apart, y, missing - _dot(meet, y)


@triton.jit
def _written(  # type: ignore[no-untyped-def]
    key, value, size, h, inside, start, rows, LEVELS: tl.constexpr, DELTA: tl.constexpr
):  # fmt: skip
    """As `_solved`; without the delta rule a token sees its value alone."""
    apart, y, missing = inside, value * size, value
    if DELTA:
        apart, y, missing = _solved(key, value, size, h, inside, start, rows, LEVELS)
    return apart, y, missing


@triton.jit
def _sizes(beta, tokens, stride, t, SIZED: tl.constexpr):  # type: ignore[no-untyped-def]
    size = tl.where(tokens < t, 1.0, 0.0)[:, None]
    if SIZED:
        size = tl.load(beta + tokens * stride, tokens < t, other=0.0).to(tl.float32)[:, None]
    return size


@triton.jit
def _factor(skip, head, SKIPS: tl.constexpr):  # type: ignore[no-untyped-def]
    factor = 0.0
    if SKIPS:
        factor = tl.load(skip + head)
    return factor


@triton.jit
def _tile(x, tokens, columns, stride, t, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    mask = (tokens < t)[:, None] & (columns < WIDTH)[None, :]
    tokens = tokens.to(tl.int64)
    return tl.load(x + tokens[:, None] * stride + columns[None, :], mask, other=0.0).to(tl.float32)


@triton.jit
def _write(x, tokens, columns, stride, t, y, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    mask = (tokens < t)[:, None] & (columns < WIDTH)[None, :]
    place = tokens[:, None].to(tl.int64) * stride + columns[None, :]
    tl.store(x + place, y.to(x.dtype.element_ty), mask)


#: Numbers of which no value is worth a kernel of its own.
PLAIN = ["t", "n", "H", "GROUP", "bb", "bh", "bt"]


@triton.jit(do_not_specialize=PLAIN)
def _forward(  # type: ignore[no-untyped-def]
    q, k, v, beta, g, skip, o, states, t, n,
    qb, qh, qt, kb, kh, kt, vb, vh, vt, bb, bh, bt,
    H, GROUP, K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    C: tl.constexpr, LEVELS: tl.constexpr, SIZED: tl.constexpr, SKIPS: tl.constexpr,
    DELTA: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0).to(tl.int64)
    b, head = program // H, program % H
    rows, keys, values = tl.arange(0, C), tl.arange(0, BK), tl.arange(0, BV)
    q += b * qb + head // GROUP * qh
    k += b * kb + head // GROUP * kh
    v += b * vb + head * vh
    beta += b * bb + head * bh
    o += b * t * H * V + head * V
    g += program * n * C
    states += program * n * K * V
    place = keys[:, None] * V + values[None, :]
    real = (keys < K)[:, None] & (values < V)[None, :]
    h = tl.full((BK, BV), 0.0, tl.float32)
    factor = _factor(skip, head, SKIPS)
    for c in range(n):
        tokens = c * C + rows
        inside, start, end, whole = _decays(g + c * C, rows, C)
        key = _tile(k, tokens, keys, kt, t, K)
        value = _tile(v, tokens, values, vt, t, V)
        tl.store(states + c * K * V + place, h.to(states.dtype.element_ty), real)
        size = _sizes(beta, tokens, bt, t, SIZED)
        _, y, _ = _written(key, value, size, h, inside, start, rows, LEVELS, DELTA)
        query = _tile(q, tokens, keys, qt, t, K)
        out = start * _dot(query, h) + _dot(_dot(query, tl.trans(key)) * inside, y)
        _write(o, tokens, values, H * V, t, out + factor * value, V)
        h = whole * h + _dot(tl.trans(end * key), y)


@triton.jit(do_not_specialize=PLAIN)
def _backward(  # type: ignore[no-untyped-def]
    do, q, k, v, beta, g, skip, states, dq, dk, dv, dbeta, dg, dskip, t, n,
    ob, oh, ot, qb, qh, qt, kb, kh, kt, vb, vh, vt, bb, bh, bt,
    H, GROUP, K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    C: tl.constexpr, LEVELS: tl.constexpr, SIZED: tl.constexpr, SKIPS: tl.constexpr,
    DELTA: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0).to(tl.int64)
    b, head = program // H, program % H
    rows, keys, values = tl.arange(0, C), tl.arange(0, BK), tl.arange(0, BV)
    do += b * ob + head * oh
    q += b * qb + head // GROUP * qh
    k += b * kb + head // GROUP * kh
    v += b * vb + head * vh
    beta += b * bb + head * bh
    dq += b * t * H * K + head * K
    dk += b * t * H * K + head * K
    dv += b * t * H * V + head * V
    dbeta += program * t
    g += program * n * C
    dg += program * n * C
    states += program * n * K * V
    place = keys[:, None] * V + values[None, :]
    real = (keys < K)[:, None] & (values < V)[None, :]
    dh, factor = tl.full((BK, BV), 0.0, tl.float32), _factor(skip, head, SKIPS)
    passed = tl.full((C,), 0.0, tl.float32)
    for i in range(n):
        c = n - 1 - i
        tokens = c * C + rows
        inside, start, end, whole = _decays(g + c * C, rows, C)
        h = tl.load(states + c * K * V + place, real, other=0.0).to(tl.float32)
        key = _tile(k, tokens, keys, kt, t, K)
        value, size = _tile(v, tokens, values, vt, t, V), _sizes(beta, tokens, bt, t, SIZED)
        apart, y, missing = _written(key, value, size, h, inside, start, rows, LEVELS, DELTA)
        query, out = _tile(q, tokens, keys, qt, t, K), _tile(do, tokens, values, ot, t, V)
        p = _dot(query, tl.trans(key)) * inside
        dy = _dot(tl.trans(p), out) + _dot(end * key, dh)
        dp = _dot(out, tl.trans(y)) * inside
        to_query = start * _dot(out, tl.trans(h)) + _dot(dp, key)
        to_key = end * _dot(y, tl.trans(dh))
        to_last = tl.sum(tl.sum(to_key * key, 1), 0) + whole * tl.sum(tl.sum(h * dh, 1), 0)
        to_key += _dot(tl.trans(dp), query)
        to_g = tl.sum(query * to_query - key * to_key, 1)
        _write(dq, tokens, keys, H * K, t, to_query, K)
        dh = whole * dh + _dot(tl.trans(start * query), out)
        if DELTA:
            dy = _dot(tl.trans(apart), dy)
        tl.store(dbeta + tokens, tl.sum(dy * missing, 1), tokens < t)
        dy *= size
        if DELTA:
            met = -_below(_dot(dy, tl.trans(y)) * inside, rows)
            reads, writes = _dot(met, key) - start * _dot(dy, tl.trans(h)), _dot(tl.trans(met), key)
            to_g += tl.sum(key * (reads - writes), 1)
            to_key += reads + writes
            dh -= _dot(tl.trans(start * key), dy)
        _write(dk, tokens, keys, H * K, t, to_key, K)
        _write(dv, tokens, values, H * V, t, dy + factor * out, V)
        passed += tl.sum(out * value, 1)
        tl.store(dg + tokens, to_g + tl.where(rows == C - 1, to_last, 0.0))
    tl.store(dskip + program, tl.sum(passed, 0))


def forward(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor | None, g: Tensor, skip: Tensor | None, o: Tensor,
    states: Tensor, rule: bool,
) -> None:  # fmt: skip
    """Write o [b t h v] and states [b h n k v]; arguments as for `recurrence.forward`."""
    parts = [*map(last_apart, (q, k, v)), v if beta is None else beta]
    strides = [x.stride(i) for x in parts for i in range(3)]
    of = beta is not None, skip is not None, rule
    _launched(_forward, (*parts, g, g if skip is None else skip, o, states), strides, q, v, g, *of)


def backward(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, beta: Tensor | None, g: Tensor,
    skip: Tensor | None, states: Tensor, grads: tuple[Tensor, ...], rule: bool,
) -> None:  # fmt: skip
    """Write gradients: of q, k [b t h k], v [b t h v], beta [b h t], g [b h n c] and skip [b h]."""
    parts = [*map(last_apart, (do, q, k, v)), v if beta is None else beta]
    strides = [x.stride(i) for x in parts for i in range(3)]
    tensors = (*parts, g, g if skip is None else skip, states, *grads)
    _launched(_backward, tensors, strides, q, v, g, beta is not None, skip is not None, rule)


def _launched(
    kernel: Any, tensors: tuple[Tensor, ...], strides: list[int], q: Tensor, v: Tensor, g: Tensor,
    sized: bool, skips: bool, rule: bool,
) -> None:  # fmt: skip
    (b, heads, t, width), (n, size) = v.shape, g.shape[2:]
    with torch.cuda.device_of(v):
        kernel[(b * heads,)](
            *tensors, t, n, *strides, H=heads, GROUP=heads // q.shape[1], K=q.shape[-1], V=width,
            BK=_power(q.shape[-1]), BV=_power(width), C=size, LEVELS=size.bit_length() - 1,
            SIZED=sized, SKIPS=skips, DELTA=rule, num_warps=8, num_stages=1,
        )  # fmt: skip


def _power(width: int) -> int:
    """Width of a tile: a power of two, 16 at least."""
    return max(16, 1 << (width - 1).bit_length())


def fault(device: torch.device, k: int, v: int, rule: bool) -> str | None:
    """Why the kernels do not serve on a device, in one line; None if they do.

    Compares outputs and gradients of three chunks with torch's own, on inputs that bf16 can hold.

    Args:
        device: of the inputs.
        k, v: widths of a head.
        rule: the delta rule.
    """
    generator = torch.Generator().manual_seed(0)
    query, key = torch.randn(2, 2, 4, 80, k, generator=generator)
    parts = [query, F.normalize(key, dim=-1), torch.randn(2, 4, 80, v, generator=generator)]
    parts += [-torch.rand(2, 4, 80, generator=generator) / 16, torch.full((2, 4, 80), 0.5)]
    parts += [] if rule else [torch.arange(4.0)]
    leaves = [x.bfloat16().float().to(device).requires_grad_() for x in parts]
    outputs = recurrence.chunkwise(*leaves, rule=rule), _by_torch(*leaves, rule=rule)
    found, right = ((o, *torch.autograd.grad(o.square().sum(), leaves)) for o in outputs)
    return wrong(found, right, 0.02)


def _by_torch(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, skip: Tensor | None = None, *,
    rule: bool,
) -> Tensor:  # fmt: skip
    if not rule:
        return ssd.chunkwise(q, k, v, g, beta, None, skip)[0]
    steps = k[:, :, :, None], v[:, :, :, None], beta[..., None, None]
    return delta.chunkwise(q, *steps, g)[0]
