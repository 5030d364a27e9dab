"""Mesa layer: each token reads by a ridge regression of past values on past keys, solved anew.

    H_t = e^{g_t} H_{t−1} + β_t k_t k_tᵀ,   G_t = e^{g_t} G_{t−1} + β_t k_t v_tᵀ,   g_t ≤ 0
    o_t = G_tᵀ x_t,   (H_t + Λ) x_t = q_t,   Λ diagonal, > 0

(MesaNet, arXiv 2506.05233, section 3.) Shapes: q, k, x [b h t k]; v, o [b h t v]; β, g [b h t];
Λ [h k]; the state has H and G side by side, [b h k k+v].

The systems are solved by conjugate gradients, all tokens at once: a product H_t p_t is linear
attention with queries p and values k. A token ends at the first step whose residual q − (H + Λ) x
is at most `tolerance` times ‖q‖ (or four roundings of the dtype), and after `steps` at the latest;
then it changes no more, so that its numbers do not depend on its neighbours. k steps solve exactly,
but for rounding. x is off by up to tolerance · (1 + ‖H‖/min Λ) of its length.

Gradients are those of the exact solution: the adjoint (H + Λ)⁻¹ ∂x is one more solve of the same
tolerance. Nothing is kept of the iterations. All arguments of exp are ≤ 0; weights are those of
`ops.pairs`. Computes in float32 or wider, also under autocast.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from chimera.ops.carry import between, carry
from chimera.ops.channels import chunk_size, chunked
from chimera.ops.precision import autocast_off, wide

State = Float[Tensor, "b h k kv"]


class Solver(NamedTuple):
    """When conjugate gradients end."""

    steps: int = 30
    tolerance: float = 1e-6


class _System(NamedTuple):
    """H + Λ of the n·c tokens of n chunks: within a chunk, of the state before it, the ridge."""

    inside: Float[Tensor, "n c c"]  # β_r and the decay from writer r to reader s
    k: Float[Tensor, "n c k"]
    start: Float[Tensor, "n c 1"]  # decay from the start of the chunk
    before: Float[Tensor, "n k k"]
    ridge: Float[Tensor, "n 1 k"]

    def times(self, p: Float[Tensor, "n c k"]) -> Float[Tensor, "n c k"]:
        """(H_t + Λ) p_t of each token."""
        y = ((p @ self.k.mT) * self.inside) @ self.k + self.ridge * p
        return torch.baddbmm(y, p * self.start, self.before.mT)


def chunkwise(
    q: Float[Tensor, "b h t k"],
    k: Float[Tensor, "b h t k"],
    v: Float[Tensor, "b h t v"],
    beta: Float[Tensor, "b h t"],
    g: Float[Tensor, "b h t"],
    ridge: Float[Tensor, "h k"],
    state: State | None = None,
    *,
    chunk: int = 64,
    solver: Solver | None = None,
) -> tuple[Float[Tensor, "b h t v"], State | None]:
    """Linear cost in t: quadratic inside chunks of `chunk` tokens, a state between chunks.

    Args:
        q, k, v: queries, keys and values.
        beta: step size of each token, ≥ 0.
        g: log-decay before each token.
        ridge: diagonal of Λ.
        state: H and G before the first token. None: zeros, and no state is returned.
        chunk: tokens in a chunk, a power of two; changes only speed.
        solver: when the solver ends; None for the default.

    Returns:
        o, and the state after the last token (None if `state` is None).

    Raises:
        ValueError: `chunk` is no power of two.
    """
    tokens, dtype, (b, h) = q.shape[2], wide(q, v), q.shape[:2]
    size = chunk_size(chunk, tokens)
    with autocast_off(q):
        q, k, v = (chunked(x.to(dtype), size, "b h (m c) k -> (b h m) c k") for x in (q, k, v))
        beta, g = (
            chunked(x.to(dtype)[..., None], size, "b h (m c) 1 -> (b h m) c") for x in (beta, g)
        )
        w, own = between(g), g.exp()[..., None]
        eye = torch.eye(size, dtype=dtype, device=g.device)
        inside = (w.products[0, 0] * own + eye) * beta[:, None]
        start, both = w.before.exp() * own, torch.cat([k, v], -1)
        sums = (k * w.after.exp() * beta[..., None]).mT @ both
        total = rearrange(w.whole, "(b h m) 1 -> (b h) m", b=b, h=h)
        sums = rearrange(sums, "(b h m) k v -> (b h) m (k v)", b=b, h=h)
        first = None if state is None else state.to(dtype).flatten(2).flatten(0, 1)
        before, last = carry(sums, total, first)
        before = before.reshape(len(q), q.shape[-1], both.shape[-1])
        past, values = before.split((q.shape[-1], v.shape[-1]), -1)
        system = _System(inside, k, start, past, _rows(ridge, b, len(q) // (b * h), dtype))
        x = _solve(system, q, solver or Solver())
        y = torch.baddbmm(((x @ k.mT) * inside) @ v, x * start, values)
        y = rearrange(y, "(b h m) c v -> b h (m c) v", b=b, h=h)
    return y[:, :, :tokens], None if state is None else last.view(state.shape)


def step(
    q: Float[Tensor, "b h 1 k"],
    k: Float[Tensor, "b h 1 k"],
    v: Float[Tensor, "b h 1 v"],
    beta: Float[Tensor, "b h 1"],
    g: Float[Tensor, "b h 1"],
    ridge: Float[Tensor, "h k"],
    state: State,
    *,
    solver: Solver | None = None,
) -> tuple[Float[Tensor, "b h 1 v"], State]:
    """One token of the recurrence. Arguments and result as for `chunkwise`."""
    dtype, width = wide(q, v), q.shape[-1]
    with autocast_off(q):
        q, k, v, beta, g, state = (x.to(dtype) for x in (q, k, v, beta, g, state))
        write = (k * beta[..., None]).mT @ torch.cat([k, v], -1)
        state = g.exp()[..., None] * state + write
        h, values = state.flatten(0, 1).split((width, v.shape[-1]), -1)
        flat = q.flatten(0, 1)
        none = torch.zeros_like(flat)
        weight = none[..., :1]
        system = _System(weight, none, weight + 1, h, _rows(ridge, len(q), 1, dtype))
        x = _solve(system, flat, solver or Solver())
        return (x @ values).view_as(v), state


def _rows(ridge: Tensor, batch: int, chunks: int, dtype: torch.dtype) -> Tensor:
    """Λ of every chunk, [n 1 k]."""
    rows = ridge.to(dtype).expand(batch, *ridge.shape).flatten(0, 1)
    return rows.repeat_interleave(chunks, 0)[:, None]


def _solve(system: _System, q: Tensor, solver: Solver) -> Tensor:
    """(H + Λ)⁻¹ q, with the gradients of the exact solution."""
    with torch.no_grad():
        x = conjugate_gradients(system, q, solver)
    # Its value is 0 but for the tolerance; its derivative is that of the equation.
    residual = q - system.times(x)
    return x + _Adjoint.apply(residual, *solver, *system)


class _Adjoint(torch.autograd.Function):
    """0 forwards; backwards, the inverse of the system: x solves q = (H + Λ) x."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        residual, steps, tolerance, *system = inputs
        ctx.solver = Solver(steps, tolerance)
        ctx.save_for_backward(*system)
        return torch.zeros_like(residual)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dx: Tensor) -> tuple[Tensor | None, ...]:
        # Autocast must be off: a backward pass started under autocast runs under autocast.
        with autocast_off(dx):
            system = _System(*ctx.saved_tensors)
            return conjugate_gradients(system, dx, ctx.solver), *[None] * (2 + len(system))


def _ends_early(device: torch.device) -> bool:
    """Whether the steps end with the last token's.

    On other devices the host would wait for each step; under the compiler the graph would break.
    """
    return device.type == "cpu" and not torch.compiler.is_compiling()


def conjugate_gradients(
    system: _System, q: Float[Tensor, "n c k"], solver: Solver
) -> Float[Tensor, "n c k"]:
    """Solve (H_t + Λ) x_t = q_t for each token until its residual is small."""
    # Squares of small gradients would underflow: each token is solved for q of size 1.
    size = q.abs().amax(-1, keepdim=True)
    q = q / size.where(size > 0, 1.0)
    x, r, p = torch.zeros_like(q), q, q
    error = q.square().sum(-1, keepdim=True)
    limit = max(solver.tolerance, 4 * torch.finfo(q.dtype).eps) ** 2 * error
    ends_early = _ends_early(q.device)
    for _ in range(solver.steps):
        active = error > limit
        if ends_early and not active.any():
            break
        hp = system.times(p)
        curvature = (p * hp).sum(-1, keepdim=True)
        alpha = torch.where(active, error / curvature.where(active, 1.0), 0.0)
        x, r = torch.addcmul(x, alpha, p), torch.addcmul(r, alpha, hp, value=-1)
        left = r.square().sum(-1, keepdim=True)
        p = torch.addcmul(r, left / error.where(active, 1.0), p)
        error = error.where(~active, left)
    return x * size
