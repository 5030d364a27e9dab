"""Selective scan S6, chunk-parallel for training and stepwise for decoding (SPEC M8).

    h_t = exp(Δ_t A) h_{t−1} + Δ_t B_t x_t,    y_t = C_t h_t + D x_t

(arXiv 2312.00752 alg. 2; TITAN eq. 9-10, 29-30.) x, Δ, y [b t e]; A [e n] ≤ 0; B, C [b t n]; D [e];
h [b n e] with the long axis e last, for vectorised instructions.

The decay differs per channel and state, so that no matrix product computes a chunk. Instead, all
chunks step from position j to j+1 at once, twice: first from zero states, for the sum that each
chunk adds to the state; then, after a scan over chunks, from the true states. Blocks of chunks fit
in the cache. The backward pass stores one state per chunk, recomputes the others, and runs the
adjoint g_t = C_t ȳ_t + exp(Δ_{t+1} A) g_{t+1} in the same way from the right.

On a GPU, two kernels of our own (`scan_triton`) compute float32; CHIMERA_KERNELS=0 turns them off.

Cost t·e·n, memory t·e·n/16. All arguments of exp are ≤ 0; no division occurs. Computes in float32
or wider, also under autocast; y and the state have this wide dtype.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple

import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from chimera.ops.kernels import constant, gpu, operation
from chimera.ops.numberless import numberless
from chimera.ops.precision import autocast_off, wide

#: Tokens in a chunk: one stored state per chunk, CHUNK sequential steps per block.
CHUNK = 16
#: Numbers that one step reads: the cache of a CPU core, or enough to use a GPU fully.
WIDTH_CPU, WIDTH_GPU = 2**16, 2**22
#: Channels of a program of the kernels.
TILE = 16
#: Least number of chunks that step together, for sequences with so many; 1 is a loop over tokens.
FEWEST = 4

State = Float[Tensor, "b n e"]


def selective_scan(
    x: Float[Tensor, "b t e"],
    delta: Float[Tensor, "b t e"],
    A: Float[Tensor, "e n"],
    B: Float[Tensor, "b t n"],
    C: Float[Tensor, "b t n"],
    D: Float[Tensor, " e"] | None = None,
    state: State | None = None,
    mask: Bool[Tensor, "b t"] | None = None,
) -> tuple[Float[Tensor, "b t e"], State]:
    """Scan over t tokens, differentiable once in every argument.

    Args:
        x: inputs.
        delta: step sizes Δ ≥ 0.
        A: continuous-time decay, ≤ 0.
        B, C: input and output maps of each token.
        D: skip connection; None for no skip connection.
        state: h before the first token; None for zeros.
        mask: True for real tokens; padding does not change the state.

    Returns:
        y, and h after the last token.
    """
    x, delta, A, B, C, state = _prepared(x, delta, A, B, C, state, mask)
    with autocast_off(x):
        scan = by_kernels if serves(x, A) else by_torch
        y, state = scan(x, delta, A, B, C, state)
        if D is not None:
            y = torch.addcmul(y, x, D.to(x.dtype))
    return y, state


def step(
    x: Float[Tensor, "b 1 e"],
    delta: Float[Tensor, "b 1 e"],
    A: Float[Tensor, "e n"],
    B: Float[Tensor, "b 1 n"],
    C: Float[Tensor, "b 1 n"],
    D: Float[Tensor, " e"] | None,
    state: State,
    mask: Bool[Tensor, "b 1"] | None = None,
) -> tuple[Float[Tensor, "b 1 e"], State]:
    """One token of the recurrence. Arguments and result as for `selective_scan`."""
    x, delta, A, B, C, state = _prepared(x, delta, A, B, C, state, mask)
    with autocast_off(x):
        state = torch.addcmul((delta * A.mT).exp() * state, B.mT, delta * x)
        y = C @ state
        if D is not None:
            y = torch.addcmul(y, x, D.to(x.dtype))
    return y, state


def _prepared(
    x: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    state: Tensor | None,
    mask: Tensor | None,
) -> tuple[Tensor, ...]:
    """Convert to one wide dtype, create a missing state, set Δ of padding to 0."""
    dtype = wide(x)
    if state is None:
        state = torch.zeros(x.shape[0], A.shape[1], A.shape[0], dtype=dtype, device=x.device)
    if mask is not None:
        delta = delta.masked_fill(~mask[..., None], 0)
    return x.to(dtype), delta.to(dtype), A.to(dtype), B.to(dtype), C.to(dtype), state.to(dtype)


def serves(x: Float[Tensor, "b t e"], A: Float[Tensor, "e n"]) -> bool:
    """True if the kernels compute these inputs: float32, a GPU, widths of whole tiles."""
    e, n = A.shape
    tiles = e % TILE == 0 and n in (4, 8, 16) and x.numel() > 0
    return tiles and x.dtype == torch.float32 and sound(x.device, n)


@constant
def sound(device: torch.device, n: int) -> bool:
    """Whether the kernels compute right numbers with n states a channel on a device."""
    return gpu(device, "scan_triton", "selective scans are computed by torch", n) is not None


def by_torch(*inputs: Tensor) -> tuple[Tensor, Tensor]:
    """y and the last state, of x, Δ, A, B, C and the first state."""
    return _Scan.apply(*inputs)


def by_kernels(
    x: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """The same, by the kernels."""
    inputs = (each.contiguous() for each in (x, delta, A.mT, B, C, state))
    y, last, _ = forward(*inputs)
    return y, last


@torch.library.custom_op(operation(__name__, "selective_scan"), mutates_args=())
def forward(
    x: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, state: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """y, the last state, and the states before each chunk [b chunks n e]; A is [n e]."""
    outputs = _outputs(x, delta, A, B, C, state)
    _kernels().forward((x, delta, A, B, C, state), outputs)
    return outputs


@forward.register_fake
def _outputs(
    x: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, state: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    chunks = -(-x.shape[1] // CHUNK)
    starts = x.new_empty(x.shape[0], chunks, *A.shape)
    return torch.empty_like(x), torch.empty_like(state), starts


@torch.library.custom_op(operation(__name__, "selective_scan_backward"), mutates_args=())
def backward(
    dy: Tensor, dlast: Tensor, x: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor,
    starts: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of x, Δ, A for each sequence, B and C for each program, and the first state."""
    grads = _gradients(dy, dlast, x, delta, A, B, C, starts)
    _kernels().backward((dy, dlast, x, delta, A, B, C, starts), grads)
    return grads


@backward.register_fake
def _gradients(
    dy: Tensor, dlast: Tensor, x: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor,
    starts: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    shapes = x.shape, x.shape, dlast.shape, *[(len(B), x.shape[2] // TILE, *B.shape[1:])] * 2
    dx, ddelta, dA, dB, dC, dstate = (x.new_empty(shape) for shape in (*shapes, dlast.shape))
    return dx, ddelta, dA, dB, dC, dstate


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs[:-1], output[2])


def _differentiate(ctx: Any, dy: Tensor, dlast: Tensor, _: Tensor) -> tuple[Tensor, ...]:
    grads = backward(dy.contiguous(), dlast.contiguous(), *ctx.saved_tensors)
    dx, ddelta, dA, dB, dC, dstate = grads
    return dx, ddelta, dA.sum(0), dB.sum(1), dC.sum(1), dstate


forward.register_autograd(_differentiate, setup_context=_keep)


def _kernels() -> ModuleType:
    return import_module("chimera.ops.scan_triton")


class _Block(NamedTuple):
    """`chunks` consecutive chunks of `size` tokens each; the first begins at token `start`."""

    start: int
    chunks: int
    size: int

    def of(self, x: Float[Tensor, "b t w"]) -> Float[Tensor, "b m c w"]:
        """View of this block's tokens, by chunk and position in the chunk."""
        cut = x[:, self.start : self.start + self.chunks * self.size]
        return rearrange(cut, "b (m c) w -> b m c w", c=self.size)

    def before(self, starts: Float[Tensor, "chunks b n e"]) -> Float[Tensor, "b m n e"]:
        """View of the states before this block's chunks, from those of the sequence."""
        first = self.start // CHUNK
        return starts[first : first + self.chunks].transpose(0, 1)


class _Inputs(NamedTuple):
    """Inputs of the scan for each token, or their gradients."""

    x: Float[Tensor, "b t e"]
    delta: Float[Tensor, "b t e"]
    B: Float[Tensor, "b t n"]
    C: Float[Tensor, "b t n"]

    def like(self) -> _Inputs:
        """Uninitialised tensors for the gradients."""
        return _Inputs(*(torch.empty_like(v) for v in self))

    def split(self, rows: int) -> list[_Inputs]:
        """Views of `rows` sequences each."""
        return [_Inputs(*part) for part in zip(*(v.split(rows) for v in self), strict=True)]


class _Plan:
    """Number of sequences and chunks that step together, and scratch buffers of that size."""

    def __init__(self, x: Float[Tensor, "b t e"], A: Float[Tensor, "n e"], count: int) -> None:
        b, t, _ = x.shape
        small = x.device.type == "cpu" and not numberless(x)
        width = (WIDTH_CPU if small else WIDTH_GPU) // A.numel()
        chunks = max(1, t // CHUNK)
        fewest = min(chunks, FEWEST)
        self.rows = max(1, min(b, width // fewest))
        together = max(fewest, min(chunks, width // self.rows))
        whole = t // CHUNK
        self.blocks = [
            _Block(first * CHUNK, min(together, whole - first), CHUNK)
            for first in range(0, whole, together)
        ]
        if t % CHUNK:
            self.blocks.append(_Block(whole * CHUNK, 1, t % CHUNK))
        size = self.rows * together * min(CHUNK, t) * A.numel()
        self._scratch = [x.new_empty(size) for _ in range(count)]

    def scratch(self, *shape: int) -> Iterator[Tensor]:
        """Reuse one allocation for every block: allocation takes longer than the computation."""
        return (flat[: math.prod(shape)].view(shape) for flat in self._scratch)


class _Scan(torch.autograd.Function):
    """Selective scan without D, `_Plan.rows` sequences at a time."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor]:
        A = A.T.contiguous()
        inputs, y = _Inputs(x, delta, B, C), torch.empty_like(x)
        starts = x.new_empty(-(-x.shape[1] // CHUNK), *state.shape)
        plan = _Plan(x, A, 2)
        n = plan.rows
        parts = zip(
            inputs.split(n), state.split(n), y.split(n), starts.split(n, dim=1), strict=True
        )
        ends = [_forward(plan, A, *part) for part in parts]
        ctx.save_for_backward(A, starts, *inputs)
        return y, torch.cat(ends)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor, dstate: Tensor) -> tuple[Tensor, ...]:
        A, starts, *saved = ctx.saved_tensors
        inputs = _Inputs(*saved)
        grads, dA = inputs.like(), torch.zeros_like(A)
        plan = _Plan(dy, A, 3)
        n = plan.rows
        outer = zip(dy.split(n), dstate.split(n), grads.split(n), strict=True)
        parts = zip(inputs.split(n), starts.split(n, dim=1), outer, strict=True)
        with autocast_off(dy):
            dfirst = [_backward(plan, A, dA, part, start, *args) for part, start, args in parts]
        return grads.x, grads.delta, dA.T, grads.B, grads.C, torch.cat(dfirst)


def _forward(
    plan: _Plan,
    A: Float[Tensor, "n e"],
    inputs: _Inputs,
    state: State,
    y: Float[Tensor, "b t e"],
    starts: Float[Tensor, "chunks b n e"],
) -> State:
    """Write outputs to `y` and the states before the chunks to `starts`; return the last state."""
    for block in plan.blocks:
        x, delta, B, C = (block.of(v) for v in inputs)
        a, h = plan.scratch(*x.shape[:3], *A.shape)
        _decay_and_input(delta, A, B, delta * x, a, h)
        added = h[:, :, 0].clone()
        for j in range(1, block.size):
            torch.addcmul(h[:, :, j], a[:, :, j], added, out=added)
        kept, before = _kept(delta, A), block.before(starts)
        for i in range(block.chunks):
            before[:, i] = state
            state = torch.addcmul(added[:, i], kept[:, i], state)
        _states(a, h, before)
        block.of(y).copy_((C[..., None, :] @ h)[..., 0, :])
    return state


def _decay_and_input(delta: Tensor, A: Tensor, B: Tensor, u: Tensor, a: Tensor, h: Tensor) -> None:
    """Write exp(Δ A) to `a` and B u, u = Δ x, to `h`, both [b m c n e]."""
    torch.mul(delta[..., None, :], A, out=a).exp_()
    torch.mul(B[..., None], u[..., None, :], out=h)


def _kept(delta: Float[Tensor, "b m c e"], A: Float[Tensor, "n e"]) -> Float[Tensor, "b m n e"]:
    """Decay of the state over a whole chunk."""
    return (delta.sum(2)[..., None, :] * A).exp_()


def _states(a: Tensor, h: Tensor, before: Float[Tensor, "b m n e"]) -> None:
    """Replace inputs in `h` by states, given decays `a` and the states before each chunk."""
    h[:, :, 0].addcmul_(a[:, :, 0], before)
    for j in range(1, h.shape[2]):
        h[:, :, j].addcmul_(a[:, :, j], h[:, :, j - 1])


def _backward(
    plan: _Plan,
    A: Float[Tensor, "n e"],
    dA: Float[Tensor, "n e"],
    inputs: _Inputs,
    starts: Float[Tensor, "chunks b n e"],
    dy: Float[Tensor, "b t e"],
    after: State,
    grads: _Inputs,
) -> State:
    """Write `grads`, add to `dA`; return the gradient of the first state, given that of the last.

    `after` is the gradient of the last state.
    """
    for block in reversed(plan.blocks):
        x, delta, B, C = (block.of(v) for v in inputs)
        dx, ddelta, dB, dC = (block.of(v) for v in grads)
        out, u, before = block.of(dy), delta * x, block.before(starts)
        a, h, g = plan.scratch(*x.shape[:3], *A.shape)
        _decay_and_input(delta, A, B, u, a, h)
        _states(a, h, before)
        dC.copy_(torch.mul(h, out[..., None, :], out=g).sum(-1))

        torch.mul(C[..., None], out[..., None, :], out=g)
        added = g[:, :, -1].clone()
        for j in range(block.size - 1, 0, -1):
            torch.addcmul(g[:, :, j - 1], a[:, :, j], added, out=added)
        added.mul_(a[:, :, 0])
        kept = _kept(delta, A)
        for i in range(block.chunks - 1, -1, -1):
            g[:, i, -1].add_(after)
            after = torch.addcmul(added[:, i], kept[:, i], after)

        # q_t = g_t ∂h_t/∂(Δ_t A) = g_t a_t h_{t−1} is computed and used while it is in the cache.
        to_A, q = torch.zeros_like(added), torch.empty_like(added)
        for j in range(block.size - 1, -1, -1):
            if j < block.size - 1:
                g[:, :, j].addcmul_(a[:, :, j + 1], g[:, :, j + 1])
            torch.mul(a[:, :, j], h[:, :, j - 1] if j else before, out=q).mul_(g[:, :, j])
            to_A.addcmul_(q, delta[:, :, j, None])
            ddelta[:, :, j] = q.mul_(A).sum(2)
        dA += to_A.sum((0, 1))
        du = (B[..., None, :] @ g)[..., 0, :]
        dx.copy_(du * delta)
        ddelta.addcmul_(du, x)
        dB.copy_(g.mul_(u[..., None, :]).sum(-1))
    return after
