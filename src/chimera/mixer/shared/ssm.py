"""Selective state-space layer S6 without its output projection (SPEC M8; arXiv 2312.00752).

    (u, z) = W_in x,   u ← SiLU(conv(u)),   (r, B, C) = W_x u,   Δ = softplus(W_Δ r + b_Δ)
    h_t = exp(Δ_t A) h_{t−1} + Δ_t B_t u_t,   y_t = C_t h_t + D u_t,   A = −exp(A_log)
                                                                     (TITAN eq. 9-10, 29-30)

x [b t d], u, z, Δ, y [b t e], B, C [b t n]. Mixers with this layer multiply y by SiLU(z) and
project the product.

Initial values follow the paper: A_log = log(1 … n) (S4D-real), D = 1, softplus(b_Δ) log-uniform in
[0.001, 0.1]. Roles: W_in is `qkv`, W_x is `gate`. Parameters of the dynamics (A_log, D, W_Δ, b_Δ,
the convolution) are never quantised.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from chimera.ops.conv import causal_conv
from chimera.ops.precision import wide, widen
from chimera.ops.scan import selective_scan, step

DT_MIN = 1e-3
DT_MAX = 1e-1


class SSMState(NamedTuple):
    """Recurrent state of S6."""

    tail: Float[Tensor, "b tail e"]  # the last real inputs of the convolution
    h: Float[Tensor, "b n e"]


class SelectiveSSM(nn.Module):
    """S6: input projection, causal convolution, selection and scan.

    Args:
        dim: model width d.
        linear: factory of the quantisable projections.
        state: n, numbers in the state per channel.
        expand: inner width e as a multiple of d.
        conv: taps of the convolution.
        dt_rank: rank of the map from u to Δ; None for ⌈d/16⌉.
    """

    undecayed = ("A_log", "D", "dt_bias")

    def __init__(
        self,
        dim: int,
        linear: Callable[..., Any],
        *,
        state: int,
        expand: int,
        conv: int,
        dt_rank: int | None,
    ) -> None:
        super().__init__()
        inner = expand * dim
        rank = dt_rank or math.ceil(dim / 16)
        self.inner = inner
        self.sizes = (rank, state, state)
        self.in_proj = linear(dim, 2 * inner, bias=False, role="qkv")
        self.conv_weight = nn.Parameter(torch.empty(inner, conv).uniform_(-1, 1) * conv**-0.5)
        self.conv_bias = nn.Parameter(torch.empty(inner).uniform_(-1, 1) * conv**-0.5)
        self.x_proj = linear(inner, sum(self.sizes), bias=False, role="gate")
        self.dt_weight = nn.Parameter(torch.empty(inner, rank).uniform_(-1, 1) * rank**-0.5)
        low = math.log(DT_MIN)
        high = math.log(DT_MAX)
        dt = torch.empty(inner).uniform_(low, high).exp()
        self.dt_bias = nn.Parameter(dt + torch.log(-torch.expm1(-dt)))  # inverse of softplus
        self.A_log = nn.Parameter(torch.arange(1.0, state + 1).log().repeat(inner, 1))
        self.D = nn.Parameter(torch.ones(inner))

    def init_state(self, batch: int) -> SSMState:
        """Zero state for `batch` sequences."""
        like = self.A_log
        return SSMState(
            self.conv_weight.new_zeros(batch, self.conv_weight.shape[1] - 1, self.inner),
            like.new_zeros(batch, self.sizes[1], self.inner, dtype=wide(like)),
        )

    def forward(
        self,
        x: Float[Tensor, "b t d"],
        mask: Bool[Tensor, "b t"] | None = None,
        state: SSMState | None = None,
    ) -> tuple[Float[Tensor, "b t e"], Float[Tensor, "b t e"], SSMState]:
        """Return y, the gate SiLU(z), and the state after the last token."""
        u, z = self.in_proj(x).chunk(2, dim=-1)
        tail, h = state or (None, None)
        u, tail = causal_conv(u, self.conv_weight, self.conv_bias, tail, mask, silu=True)
        low, B, C = self.x_proj(u).split(self.sizes, dim=-1)
        delta = F.softplus(widen(F.linear(low, self.dt_weight)) + self.dt_bias)
        A = -self.A_log.to(wide(u)).exp()
        if h is not None and x.shape[1] == 1:
            y, h = step(u, delta, A, B, C, self.D, h, mask)
        else:
            y, h = selective_scan(u, delta, A, B, C, self.D, h, mask)
        return y, F.silu(z), SSMState(tail, h)
