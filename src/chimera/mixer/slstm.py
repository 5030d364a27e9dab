"""sLSTM: scalar memory with recurrent gates, from xLSTM (SPEC M13; arXiv 2405.04517).

    a = SiLU(conv_4(x));   (ĩ, f̃, z̃, õ)_t = [W_if a_t; W_zo x_t] + R h_{t−1} + b
    c_t = f_t c_{t−1} + i_t tanh(z̃_t);   n_t = f_t n_{t−1} + i_t;   f = σ(f̃), i = exp(ĩ)
    h_t = σ(õ_t) c_t / n_t;   y = HeadNorm(h)                         (eq. 8–18, appendix, fig. 10)

This is the authors' layer: W and R are block-diagonal with one block per head, without an output
projection. The gated FFN that follows the layer in their block is the model's `ffn`. The gates read
h_{t−1}; therefore the layer has only the recurrent form, and training loops over tokens.
x, h [b t d], d = heads·e.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from chimera.contract import CAUSAL, Context, Mixer, Out, Parts, PositiveInt, Site
from chimera.mixer.shared.headwise import HeadNorm, HeadwiseLinear
from chimera.ops.conv import causal_conv
from chimera.ops.slstm import Cell, slstm


class State(NamedTuple):
    """Last inputs of the convolution, and the state of the cell."""

    tail: Float[Tensor, "b tail d"]
    cell: Cell


class SLSTM(Mixer):
    """Scalar memory with exponential and recurrent gates (xLSTM).

    Args:
        heads: number of heads; None for the model's number.
        conv: taps of the convolution; 1 only scales each channel.
        headwise: block-diagonal W, one block per head, which no quantiser changes; False for a
            dense, quantisable W.
    """

    component = "slstm"
    undecayed = ("gate_bias",)
    directions = CAUSAL
    forms = ("recurrent",)
    source = "M13 slstm; arXiv 2405.04517"
    cost = "t·d²/h, sequential"
    state_size = "(3 + conv)·d"
    #: Setting with which a quantiser has matrices to quantise.
    dense = "mixer.headwise=false"

    def __init__(
        self,
        site: Site,
        parts: Parts,
        *,
        heads: PositiveInt | None = None,
        conv: PositiveInt = 4,
        headwise: bool = True,
    ) -> None:
        super().__init__()
        h, d = heads or site.heads, site.dim
        if d % h:
            raise ValueError(f"heads={h} does not divide the model width {d}")
        self.heads = h
        self.dim = d
        e = d // h
        self.depth = site.layer / max(1, site.depth - 1)  # 0 in the first layer, 1 in the last

        def project() -> Any:
            if headwise:
                return HeadwiseLinear(d, 2 * d, h, role="gate")
            return parts.linear(d, 2 * d, bias=False, role="gate")

        self.conv = nn.Parameter(torch.empty(d, conv))
        self.conv_bias = nn.Parameter(torch.empty(d))
        self.if_proj = project()
        self.zo_proj = project()
        self.recurrent = nn.Parameter(torch.empty(h, e, 4 * e))
        self.gate_bias = nn.Parameter(torch.empty(h, 4 * e))
        self.norm = HeadNorm(h, e)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise as the authors: R = 0, biases of forget gates from slow to fast decay."""
        bound = self.conv.shape[1] ** -0.5
        nn.init.uniform_(self.conv, -bound, bound)
        nn.init.uniform_(self.conv_bias, -bound, bound)
        for projection in (self.if_proj, self.zo_proj):
            nn.init.normal_(projection.weight, std=math.sqrt(2 / (5 * self.dim)))
        nn.init.zeros_(self.recurrent)
        nn.init.zeros_(self.gate_bias)
        forget = self.gate_bias.unflatten(-1, (4, -1))[:, 1]
        with torch.no_grad():
            forget.copy_(
                5 - 12 * torch.linspace(0, 1, forget.shape[-1]) ** (0.3 + 1.3 * self.depth)
            )

    def init_state(self, batch: int) -> State:
        d, conv = self.conv.shape
        tail = self.conv.new_zeros(batch, conv - 1, d)
        return State(tail, Cell.empty(batch, self.heads, d // self.heads, self.conv))

    def forward(self, x: Tensor, ctx: Context, state: State | None = None) -> Out:
        tail, cell = state or self.init_state(len(x))
        a, tail = causal_conv(x, self.conv, self.conv_bias, tail, ctx.mask, silu=True)
        gates = torch.cat(
            [
                rearrange(y, "b t (n e) -> b t n e", n=self.heads)
                for y in (self.if_proj(a), self.zo_proj(x))
            ],
            -1,
        )
        h, cell = slstm(gates + self.gate_bias, self.recurrent, cell, ctx.mask)
        y = self.norm(rearrange(h, "b t n e -> b n t e")).to(x.dtype)
        return Out(y, None if state is None else State(tail, cell))
