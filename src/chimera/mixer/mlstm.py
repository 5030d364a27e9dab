"""mLSTM: matrix memory of xLSTM in its up-projection block (SPEC M13; SAIDL 3.7; arXiv 2405.04517).

    (u, z) = W_up x;   a = SiLU(conv_4(u));   q = W_q a;  k = W_k a/√k;  v = W_v u
    (ĩ, f̃) = W_if [q; k; v] + b_if            one scalar each per head
    C_t = f_t C_{t−1} + i_t k_t v_tᵀ;  n_t = f_t n_{t−1} + i_t k_t;  f = σ(f̃), i = exp(ĩ)
    h_t = C_tᵀ q_t / max(|n_t·q_t|, 1)
    y = W_o ((HeadNorm(h) + s ⊙ a) ⊙ SiLU(z))                       (eq. 19–27, appendix, fig. 11)

This is the authors' block: expansion 2, W_q, W_k, W_v with 4 × 4 blocks, learned skip s. SAIDL
writes σ for i, but its experiments used the authors' package, which has exp. xLSTM uses this mixer
with ffn=none. x [b t d]; q, k, v [b h t k] with h·k = expand·d.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from chimera.contract import CAUSAL, Context, Mixer, Out, Parts, PositiveFloat, PositiveInt, Site
from chimera.mixer.shared.headwise import HeadNorm, HeadwiseLinear
from chimera.ops.conv import causal_conv
from chimera.ops.mlstm import Memory, mlstm


class State(NamedTuple):
    """Last inputs of the convolution, and the state of the cell."""

    tail: Float[Tensor, "b tail d"]
    memory: Memory


class MLSTM(Mixer):
    """Matrix memory with exponential gates (xLSTM).

    Args:
        heads: heads h; None for the model's number.
        expand: inner width as a multiple of d.
        conv: taps of the convolution; 1 only scales each channel.
        qkv_block: width of the blocks of W_q, W_k, W_v; null for dense, quantisable matrices.
        bias: biases in W_up and W_o (ignored by quantisers without biases).
        chunk: tokens in a chunk; a larger chunk costs more per token and needs fewer steps.
    """

    component = "mlstm"
    undecayed = ("gate_bias",)
    directions = CAUSAL
    forms = ("parallel", "chunkwise", "recurrent")
    source = "M13; SAIDL 3.7; arXiv 2405.04517"
    cost = "t·(d² + chunk·d + d·k)"
    state_size = "h·k·(k+1) + h + (conv−1)·expand·d"

    def __init__(
        self,
        site: Site,
        parts: Parts,
        *,
        heads: PositiveInt | None = None,
        expand: PositiveFloat = 2,
        conv: PositiveInt = 4,
        qkv_block: PositiveInt | None = 4,
        bias: bool = False,
        chunk: PositiveInt = 64,
    ) -> None:
        super().__init__()
        h = self.heads = heads or site.heads
        inner = round(expand * site.dim)
        if inner % h:
            raise ValueError(f"heads={h} does not divide the inner width {inner} of mixer=mlstm")
        if inner % (qkv_block or 1):
            raise ValueError(f"qkv_block={qkv_block} does not divide the inner width {inner}")
        self.dim = site.dim
        self.chunk = chunk

        def project() -> Any:
            if qkv_block is None:
                return parts.linear(inner, inner, bias=False, role="qkv")
            return HeadwiseLinear(inner, inner, inner // qkv_block, role="qkv")

        self.up_proj = parts.linear(site.dim, 2 * inner, bias=bias, role="up")
        self.conv = nn.Parameter(torch.empty(inner, conv))
        self.conv_bias = nn.Parameter(torch.empty(inner))
        self.q_proj = project()
        self.k_proj = project()
        self.v_proj = project()
        self.gates = parts.linear(3 * inner, 2 * h, bias=False, role="gate")
        self.gate_bias = nn.Parameter(torch.empty(2 * h))  # separate, as quantisers may omit biases
        self.norm = HeadNorm(h, inner // h)
        self.skip = nn.Parameter(torch.empty(inner))
        self.o_proj = parts.linear(inner, site.dim, bias=bias, role="out")
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise as the authors: forget biases 3 to 6 over heads, input gates near i = 1."""
        for projection in (self.q_proj, self.k_proj, self.v_proj):
            nn.init.normal_(projection.weight, std=math.sqrt(2 / (5 * self.dim)))
        bound = self.conv.shape[1] ** -0.5
        nn.init.uniform_(self.conv, -bound, bound)
        nn.init.uniform_(self.conv_bias, -bound, bound)
        nn.init.zeros_(self.gates.weight)
        with torch.no_grad():
            i, f = self.gate_bias.chunk(2)
            i.normal_(std=0.1)
            f.copy_(torch.linspace(3, 6, self.heads))
        nn.init.ones_(self.skip)

    def init_state(self, batch: int) -> State:
        inner, conv = self.conv.shape
        k = inner // self.heads
        tail = self.conv.new_zeros(batch, conv - 1, inner)
        return State(tail, Memory.empty(batch, self.heads, k, k, self.conv))

    def forward(self, x: Tensor, ctx: Context, state: State | None = None) -> Out:
        tail, memory = state or (None, None)
        u, z = self.up_proj(x).chunk(2, -1)
        a, tail = causal_conv(u, self.conv, self.conv_bias, tail, ctx.mask, silu=True)
        q, k, v = self.q_proj(a), self.k_proj(a), self.v_proj(u)
        i, f = rearrange(
            self.gates(torch.cat([q, k, v], -1)) + self.gate_bias, "b t (n h) -> n b h t", n=2
        )
        q, k, v = (rearrange(y, "b t (h k) -> b h t k", h=self.heads) for y in (q, k, v))
        k = k / math.sqrt(k.shape[-1])
        y, memory = mlstm(q, k, v, i, f, memory, ctx.mask, chunk=self.chunk)
        y = self.o_proj(((self.norm(y) + self.skip * a) * F.silu(z)).to(x.dtype))
        return Out(y, None if memory is None else State(tail, memory))
