"""TTT-Linear: the state is a linear model that learns while it reads (arXiv 2407.04620).

    ℓ_t(W) = ½ ‖f(k_t; W) − v_t‖²,   f(x; W) = x + LN(x W + b)              (eq. 4, section 2.7)
    W_t = W_{t'} − c_p Σ_{t' < s ≤ t} η_s ∇ℓ_s(W_{t'}),   z_t = f(q_t; W_t)     (eq. 5 and 6, 2.4)
    y = W_o LayerNorm(z),   q = W_q x,  k = W_k x,  v = W_v x,  η = lr σ(w_η x + b_η)/k per head

The recurrence is `ops.ttt`: gradients of a mini-batch of m tokens are taken at its start t'. W
and b start at learned values. This is the layer of the paper's Transformer backbone.

Paper and the authors' code differ, and this is the code: steps are divided by the width k of a
head; they are weighted by the reader's place p in its mini-batch with c_p = 1/(p + 1) + δ_p ≥ 0, δ
learned (the paper has c = 1: a token late in a mini-batch then moves m times as far); and the loss
has the factor ½. Queries and keys are rotated by positions modulo m, as there, with a position that
rotates. The code has no state for a mini-batch that a prompt leaves half done unless tokens follow
singly; this continues from anywhere, in pieces of any length. x [b t d]; q, k, v, z [b h t k].
"""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from chimera.contract import (
    CAUSAL,
    Context,
    Direction,
    Hook,
    Mixer,
    Out,
    Parts,
    PositiveFloat,
    PositiveInt,
    Site,
)
from chimera.ops import ttt
from chimera.ops.precision import widen


class TTTLinear(Mixer):
    """Linear model per head that takes a gradient step on each mini-batch of tokens.

    Args:
        heads: heads h; None for the model's number.
        mini_batch: m, tokens whose gradients are taken at one point; changes the numbers.
        rate: lr, largest step size before the division by k.
    """

    component = "ttt_linear"
    undecayed = ("inner", "places", "rate_bias", "shift")
    directions: ClassVar[frozenset[Direction]] = CAUSAL
    position_hooks: ClassVar[frozenset[Hook]] = frozenset({"embed", "rotate"})
    forms = ("chunkwise", "recurrent")
    source = "arXiv 2407.04620"
    cost = "t·d·(d + k + mini_batch)"
    state_size = "2·h·(k + 1)·k"

    def __init__(
        self,
        site: Site,
        parts: Parts,
        *,
        heads: PositiveInt | None = None,
        mini_batch: PositiveInt = 16,
        rate: PositiveFloat = 1.0,
    ) -> None:
        super().__init__()
        h = self.heads = heads or site.heads
        if site.dim % h:
            raise ValueError(f"heads={h} does not divide the model width {site.dim}")
        k = self.head_dim = site.dim // h
        self.rate = rate / k
        self.q_proj, self.k_proj, self.v_proj = (
            parts.linear(site.dim, site.dim, bias=False, role="qkv") for _ in range(3)
        )
        self.rate_proj = parts.linear(site.dim, h, bias=False, role="gate")
        self.rate_bias = nn.Parameter(torch.zeros(h))
        self.inner = nn.Parameter(torch.cat([0.02 * torch.randn(h, k, k), torch.zeros(h, 1, k)], 1))
        self.scale = nn.Parameter(torch.ones(h, 1, k))
        self.shift = nn.Parameter(torch.zeros(h, 1, k))
        self.places = nn.Parameter(torch.zeros(mini_batch))
        self.norm = nn.LayerNorm(site.dim, eps=1e-6)
        self.o_proj = parts.linear(site.dim, site.dim, bias=False, role="out")
        self.position = parts.position(site, h, k)

    def init_state(self, batch: int) -> ttt.Memory:
        return ttt.Memory.empty(batch, self.heads, self.head_dim, self.inner)

    def forward(self, x: Tensor, ctx: Context, state: ttt.Memory | None = None) -> Out:
        q, k, v = (
            rearrange(proj(x), "b t (h k) -> b h t k", h=self.heads)
            for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        m = len(self.places)
        q, k = self.position.rotate(q, k, ctx.pos % m)
        eta = self.rate * (widen(self.rate_proj(x)) + self.rate_bias).sigmoid().mT
        weights = 1 / torch.arange(1, m + 1, device=x.device) + widen(self.places)
        model = ttt.Model(self.inner, self.scale, self.shift, weights.clamp(min=0))
        memory: ttt.Memory | None
        if state is not None and x.shape[1] == 1:
            z, memory = ttt.step(q, k, v, eta, model, state, ctx.mask)
        else:
            z, memory = ttt.chunkwise(q, k, v, eta, model, state, ctx.mask)
        z = rearrange(z, "b h t k -> b t (h k)")
        weight, bias = (p.to(z.dtype) for p in (self.norm.weight, self.norm.bias))
        z = F.layer_norm(z, z.shape[-1:], weight, bias, self.norm.eps).to(x.dtype)
        return Out(self.o_proj(z), memory)
