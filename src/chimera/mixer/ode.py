"""Neural-ODE attention (SPEC M7; TITAN 4.3, eq. 26-28, Algorithm 2; arXiv 1806.07366).

    dz/dt = f(z, t) = W_o(t) softmax(Q Kᵀ / √k + bias) V,   z(0) = x,   y = z(1) − z(0)
    Q = W_q(t) z, K = W_k(t) z, V = W_v(t) z,   W(t) = W (1 + α sin(ωt)), α and ω per projection

solved by a Runge-Kutta method of fourth order, with `steps` steps of four evaluations. (Eq. 27 has
no W_o, but Table 6 counts it.) y is only the increment, because the block adds y to its residual. z
is in float32 or wider. Eq. 52, aux `ode`, is the mean over steps and real tokens of
‖f(z(t_k), t_k)‖² at the start of each step, where f is computed already. The mean is per token,
because a norm of the whole batch would grow with the batch.

f has no dropout, because the adjoint equation would then differ from the forward pass; the block's
dropout acts on the increment.

`backprop` selects the tensors stored for the backward pass. `direct` stores all. `checkpoint`
stores z at each step and computes the step again. `adjoint` stores the same z and integrates the
adjoint equation backwards by torchdiffeq; its gradient is that of the exact flow, up to the error
of the solver. torchdiffeq's rk4 is the 3/8 rule, not the classic rule of Algorithm 2; with
`adjoint`, all passes use the 3/8 rule.
"""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from typing import Literal

import torch
from torch import Tensor, nn

from chimera.contract import Context, Out, Parts, PositiveInt, Site
from chimera.errors import UserError
from chimera.mixer.shared.softmax import SoftmaxMixer
from chimera.ops.attention import KVCache
from chimera.ops.precision import widen
from chimera.ops.rk4 import CLASSIC, THREE_EIGHTHS, solve, solve_adjoint
from chimera.ops.together import together

#: One cache per evaluation of f, because each stage has its own keys and values.
Caches = tuple[KVCache, ...]


class ODEAttention(SoftmaxMixer):
    """Attention as a neural ODE, integrated over a continuous depth of 1; aux loss `ode`.

    Args:
        heads: query heads h; None for the model's number.
        kv_heads: key-value heads, a divisor of h; None for h.
        steps: Runge-Kutta steps (2 in TITAN, 4 in TORM Table 8).
        alpha: initial amplitude α of the modulation; with 0, ω gets no gradient.
        omega: initial frequency ω, in radians over the whole depth.
        backprop: tensors stored for the backward pass, see above.

    Raises:
        UserError: backprop=adjoint without torchdiffeq.
    """

    component = "ode"
    documents = True
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
        super().__init__(site, parts, heads=heads, kv_heads=kv_heads, bias=False, dropout=0.0)
        if backprop == "adjoint" and find_spec("torchdiffeq") is None:
            raise UserError(
                "backprop=adjoint needs torchdiffeq, which is not installed; install"
                " chimera-lm[ode] or use backprop=direct or checkpoint"
            )
        self.steps = steps
        self.backprop = backprop
        self.alpha = nn.Parameter(torch.full((4,), float(alpha)))
        self.omega = nn.Parameter(torch.full((4,), float(omega)))

    def init_state(self, batch: int) -> Caches:
        return (self.cache(batch),) * (4 * self.steps)

    def forward(self, x: Tensor, ctx: Context, state: Caches | None = None) -> Out:
        start = widen(x)
        caches = None if state is None else list(state)
        needs_grad = caches is None and torch.is_grad_enabled()
        f = partial(self.slope, ctx=ctx, caches=caches)
        measure = partial(energy, mask=ctx.mask)
        if needs_grad and self.backprop == "adjoint":
            weights = tuple(self.parameters())
            z, cost = solve_adjoint(f, start, self.steps, measure=measure, weights=weights)
        else:
            z, cost = solve(
                f,
                start,
                self.steps,
                measure=measure,
                tableau=THREE_EIGHTHS if self.backprop == "adjoint" else CLASSIC,
                recompute=needs_grad and self.backprop == "checkpoint",
            )
        y = (z - start).to(x.dtype)
        return Out(y, None if caches is None else tuple(caches), {"ode": cost})

    def slope(
        self,
        z: Tensor,
        t: float | Tensor,
        call: int,
        *,
        ctx: Context,
        caches: list[KVCache] | None = None,
    ) -> Tensor:
        """f(z, t); `call`, the index of this evaluation, selects its cache in decoding."""
        x = z.to(self.q_proj.weight.dtype)
        by_q, by_k, by_v, by_o = (1 + self.alpha * torch.sin(self.omega * t)).unbind()
        q, k, v = together(x, self.q_proj, self.k_proj, self.v_proj)
        q = self.heads.split(q * by_q, self.heads.h)
        k = self.heads.split(k * by_k, self.heads.g)
        v = self.heads.split(v * by_v, self.heads.g)
        cache = None if caches is None else caches[call]
        y, cache = self.full_attention(q, k, v, ctx.pos, ctx.mask, cache, ctx)
        if caches is not None and cache is not None:
            caches[call] = cache
        return (self.output(y) * by_o).to(z.dtype)


def energy(slope: Tensor, mask: Tensor | None) -> Tensor:
    """Mean of ‖f‖² over the real tokens."""
    squared = slope.square().sum(-1)
    if mask is None:
        return squared.mean()
    return squared.masked_fill(~mask, 0.0).sum() / mask.sum().clamp(min=1)
