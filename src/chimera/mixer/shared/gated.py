"""Parts that recurrent layers share since Mamba-2: convolution, gates, norm.

    ShortConv    y_t = SiLU(b + Σ_j w_j ⊙ x_{t−taps+1+j})                        [b t d] to [b t d]
    DecayGate    g = −exp(A_log) softplus(x + dt_bias) ≤ 0                       [b t c] to [b t c]
    LowRank      y = W₂ f(W₁ x) + b                                              [b t d] to [b t c]
    GatedNorm    y = w ⊙ x/√(mean x² + ε) ⊙ σ(z), or ⊙ SiLU(z)                   over the last axis

(Mamba-2, arXiv 2405.21060; Gated DeltaNet, arXiv 2412.06464, eq. 10 and fig. 1; Kimi Delta
Attention, arXiv 2510.26692.) Of these parameters only W₁ is quantised.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from chimera.contract import Mixer
from chimera.ops.conv import causal_conv
from chimera.ops.precision import widen

DT_MIN = 1e-3
DT_MAX = 1e-1


class StateSpace(Mixer):
    """Widths and the output's norm of Mamba-2 and its log-linear form."""

    norm: Tensor

    def set_widths(self, dim: int, state: int, expand: int, head_dim: int, groups: int) -> None:
        """Set inner width e, channels p of a head, heads h, and widths of x̂, B and C.

        Raises:
            ValueError: p does not divide e, or `groups` does not divide h.
        """
        e = self.inner = expand * dim
        self.head_dim = min(head_dim, e)
        self.heads = e // self.head_dim
        if e % self.head_dim or self.heads % groups:
            raise ValueError(
                f"mixer={self.component} with inner width {e}: head_dim={self.head_dim} has to"
                f" divide it, and groups={groups} the number of heads"
            )
        self.groups = groups
        self.state = state
        self.widths = (e, groups * state, groups * state)

    def gated(self, y: Float[Tensor, "b t e"], z: Float[Tensor, "b t e"]) -> Float[Tensor, "b t e"]:
        """RMSNorm of each group's channels of y ⊙ SiLU(z), in float32 or wider."""
        y = (y * F.silu(widen(z))).unflatten(-1, (self.groups, -1))
        return F.rms_norm(y, y.shape[-1:], eps=1e-5).flatten(2) * self.norm


class ShortConv(nn.Module):
    """Causal depthwise convolution with SiLU; without taps, SiLU alone.

    Args:
        width: channels d.
        taps: tokens that each output reads; 0 for no convolution.
        bias: a number per channel.
    """

    def __init__(self, width: int, taps: int, *, bias: bool = False) -> None:
        super().__init__()
        self.width = width
        self.taps = taps
        bound = taps**-0.5 if taps else 0.0
        self.weight = (
            nn.Parameter(torch.empty(width, taps).uniform_(-bound, bound)) if taps else None
        )
        self.bias = nn.Parameter(torch.empty(width).uniform_(-bound, bound)) if bias else None

    def init_tail(self, batch: int, like: Tensor) -> Float[Tensor, "b tail d"]:
        """Inputs before the first token: zeros, with the dtype and device of `like`."""
        return like.new_zeros(batch, max(self.taps - 1, 0), self.width)

    def forward(
        self,
        x: Float[Tensor, "b t d"],
        tail: Float[Tensor, "b tail d"] | None = None,
        mask: Bool[Tensor, "b t"] | None = None,
    ) -> tuple[Float[Tensor, "b t d"], Float[Tensor, "b tail d"]]:
        """Return y, and the last taps − 1 real inputs for the next call."""
        if self.weight is None:
            return F.silu(x), self.init_tail(len(x), x) if tail is None else tail
        return causal_conv(x, self.weight, self.bias, tail, mask, silu=True)


class DecayGate(nn.Module):
    """Log-decay of each token, in float32 or wider; a rate per head, a bias per channel.

    Initial values are Mamba-2's: exp(A_log) uniform in [1, 16], softplus(dt_bias) log-uniform in
    [0.001, 0.1], so that half-lives reach from half a token to hundreds of tokens.

    Args:
        heads: heads h, with a rate each.
        channels: channels c, a multiple of h; those of a head are adjacent. None for h.
    """

    undecayed = ("A_log", "dt_bias")

    def __init__(self, heads: int, channels: int | None = None) -> None:
        super().__init__()
        self.repeats = (channels or heads) // heads
        self.A_log = nn.Parameter(torch.empty(heads).uniform_(1, 16).log())
        dt = torch.empty(channels or heads).uniform_(math.log(DT_MIN), math.log(DT_MAX)).exp()
        self.dt_bias = nn.Parameter(dt + torch.log(-torch.expm1(-dt)))  # softplus of it is dt

    def steps(self, x: Float[Tensor, "b t c"]) -> Float[Tensor, "b t c"]:
        """Step sizes Δ = softplus(x + dt_bias)."""
        return F.softplus(widen(x) + widen(self.dt_bias))

    def rates(self) -> Float[Tensor, " c"]:
        """Continuous-time decay A = −exp(A_log) of each channel."""
        return -widen(self.A_log).exp().repeat_interleave(self.repeats)

    def forward(self, x: Float[Tensor, "b t c"]) -> Float[Tensor, "b t c"]:
        return self.rates() * self.steps(x)


class LowRank(nn.Module):
    """Map through `rank` channels; W₁ is a quantisable layer with the role `gate`.

    Args:
        linear: factory of W₁.
        d_in, rank, d_out: widths.
        bias: a number per output.
        between: f, such as tanh; None for the identity.
    """

    undecayed = ("bias",)

    def __init__(
        self,
        linear: Callable[..., Any],
        d_in: int,
        rank: int,
        d_out: int,
        *,
        bias: bool,
        between: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__()
        bound = rank**-0.5
        self.down = linear(d_in, rank, bias=False, role="gate")
        self.between = between
        self.up = nn.Parameter(torch.empty(d_out, rank).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(d_out).uniform_(-bound, bound)) if bias else None

    def forward(self, x: Float[Tensor, "*b i"]) -> Float[Tensor, "*b o"]:
        x = self.down(x)
        return F.linear(x if self.between is None else self.between(x), self.up, self.bias)


class GatedNorm(nn.Module):
    """RMSNorm over the last axis times a gate, in float32 or wider.

    Args:
        width: size of the last axis.
        gate: function of the gate's input.
    """

    component = "norm"

    def __init__(self, width: int, *, gate: Literal["silu", "sigmoid"]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.gate = getattr(F, gate)

    def forward(self, x: Float[Tensor, "*n v"], z: Float[Tensor, "*n v"]) -> Float[Tensor, "*n v"]:
        x = widen(x)
        y = F.rms_norm(x, x.shape[-1:], self.weight.to(x.dtype), 1e-6)
        return y * self.gate(z.to(x.dtype))
