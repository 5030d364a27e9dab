"""Neural-ODE attention (SPEC M7; TITAN 4.3, eq. 26-28, Algorithm 2; arXiv 1806.07366).

    dz/dt = f(z, t) = W_o(t) softmax(Q Kᵀ / √k + bias) V,   z(0) = x,   y = z(1) − z(0)
    Q = W_q(t) z, K = W_k(t) z, V = W_v(t) z,   W(t) = W (1 + α sin(ωt)), α and ω per projection

by Runge-Kutta of fourth order in `steps` steps of four evaluations. (Eq. 27 has no W_o; Table 6
counts it.) The block adds y to its residual, so the state is counted once. z is kept in float32 at
least. Eq. 52, aux `ode`, is the mean over steps and real tokens of ‖f(z(t_k), t_k)‖² at the start
of each step (there it is already computed); per token, because a norm of the whole batch would
grow with the batch.

There is no dropout inside f, or the adjoint would solve another equation than the forward pass;
the block's own acts on the increment.

`backprop` says what the backward pass keeps: `direct` everything, `checkpoint` z at each step,
recomputing the step, `adjoint` the same few states, integrating the adjoint equation backwards
through torchdiffeq: its gradient is that of the exact flow, as precise as the solver. torchdiffeq's
rk4 is the 3/8 rule and not the classic one of Algorithm 2; with `adjoint` every pass uses it.
"""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from typing import Literal

import torch
from torch import Tensor, nn

from chimera.contract import Ctx, Out, Parts, PositiveInt, Site
from chimera.errors import UserError
from chimera.mixer.shared.softmax import SoftmaxMixer
from chimera.ops.attention import KVCache
from chimera.ops.rk4 import CLASSIC, THREE_EIGHTHS, solve, solve_adjoint

#: One cache per evaluation of f: its keys and values are of the state at that stage.
Caches = tuple[KVCache, ...]


class ODEAttention(SoftmaxMixer):
    """Attention integrated over a continuous depth of one. [b t d] to [b t d], aux `ode`.

    Args:
        heads: query heads h; None takes the model's.
        kv_heads: key-value heads, a divisor of h; None means h.
        steps: Runge-Kutta steps (2 in TITAN, 4 in TORM Table 8).
        alpha: initial depth α of the modulation; at 0 its frequency would not learn.
        omega: initial frequency ω, in radians over the whole depth.
        backprop: how the backward pass trades memory for time.
    """

    component = "ode"
    forms = ("parallel", "recurrent")
    source = "M7; TITAN 4.3; arXiv 1806.07366"
    cost = "4·steps·t²·d"
    state_size = "8·steps·t·d (4·steps caches, which grow)"

    def __init__(
        self,
        site: Site,
        parts: Parts,
        *,
        heads: PositiveInt | None = None,
        kv_heads: PositiveInt | None = None,
        steps: PositiveInt = 2,
        alpha: float = 0.1,
        omega: float = 1.0,
        backprop: Literal["direct", "checkpoint", "adjoint"] = "direct",
    ) -> None:
        # No dropout inside f: see above.
        super().__init__(site, parts, heads=heads, kv_heads=kv_heads, bias=False, dropout=0.0)
        if backprop == "adjoint" and find_spec("torchdiffeq") is None:
            raise UserError(
                "backprop=adjoint needs torchdiffeq, which is not installed; install chimera[ode]"
                " or use backprop=direct or checkpoint"
            )
        self.steps, self.backprop = steps, backprop
        self.alpha = nn.Parameter(torch.full((4,), float(alpha)))
        self.omega = nn.Parameter(torch.full((4,), float(omega)))

    def init_state(self, batch: int) -> Caches:
        return (self.cache(batch),) * (4 * self.steps)

    def forward(self, x: Tensor, ctx: Ctx, state: Caches | None = None) -> Out:
        start = x.to(torch.promote_types(x.dtype, torch.float32))
        caches = None if state is None else list(state)
        learns = caches is None and torch.is_grad_enabled()
        f = partial(self.slope, ctx=ctx, caches=caches)
        measure = partial(energy, mask=ctx.mask)
        if learns and self.backprop == "adjoint":
            weights = tuple(self.parameters())
            z, cost = solve_adjoint(f, start, self.steps, measure=measure, weights=weights)
        else:
            z, cost = solve(
                f,
                start,
                self.steps,
                measure=measure,
                tableau=THREE_EIGHTHS if self.backprop == "adjoint" else CLASSIC,
                recompute=learns and self.backprop == "checkpoint",
            )
        y = (z - start).to(x.dtype)
        return Out(y, None if caches is None else tuple(caches), {"ode": cost})

    def slope(
        self,
        z: Tensor,
        t: float | Tensor,
        call: int,
        *,
        ctx: Ctx,
        caches: list[KVCache] | None = None,
    ) -> Tensor:
        """f(z, t); in decoding, `call` says whose cache this evaluation continues."""
        x = z.to(self.q_proj.weight.dtype)
        by_q, by_k, by_v, by_o = (1 + self.alpha * torch.sin(self.omega * t)).unbind()
        q = self.heads.split(self.q_proj(x) * by_q, self.heads.h)
        k = self.heads.split(self.k_proj(x) * by_k, self.heads.g)
        v = self.heads.split(self.v_proj(x) * by_v, self.heads.g)
        cache = None if caches is None else caches[call]
        y, cache = self.everywhere(q, k, v, ctx.pos, ctx.mask, cache)
        if caches is not None and cache is not None:
            caches[call] = cache
        return (self.output(y) * by_o).to(z.dtype)


def energy(slope: Tensor, mask: Tensor | None) -> Tensor:
    """‖f‖² of each token, averaged over the real ones."""
    squared = slope.square().sum(-1)
    if mask is None:
        return squared.mean()
    return squared.masked_fill(~mask, 0.0).sum() / mask.sum().clamp(min=1)
