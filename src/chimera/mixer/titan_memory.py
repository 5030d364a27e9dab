"""Titan memory: Mamba with an additional fast-weight memory (SPEC M9; TITAN 4.4, eq. 29-32).

    y = W_out ((s + r) ⊙ SiLU(z))
    h_t = exp(Δ_t A) h_{t−1} + Δ_t B_t u_t,   s_t = C_t h_t + D u_t
    M_t = α M_{t−1} + (1 − α) k_t v_tᵀ,       r_t = M_tᵀ q_t              (per head)

TITAN says that the read «augments the SSM output». This code adds the read r to the SSM output s
before the gate, and values have the SSM's inner width e. `chimera.mixer.shared.ssm` computes s and
z; `chimera.mixer.shared.memory` computes r and explains the orientation of M and the normalised
keys. q, k, v are projections of x. [b t d] to [b t d].
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

from jaxtyping import Float
from torch import Tensor

from chimera.contract import CAUSAL, Context, Direction, Mixer, Out, Parts, PositiveInt, Site
from chimera.mixer.shared.memory import FastWeightMemory, OpenFraction
from chimera.mixer.shared.ssm import SelectiveSSM, SSMState


class TitanState(NamedTuple):
    """States of the SSM and of the memory."""

    ssm: SSMState
    memory: Float[Tensor, "b h k v"]


class TitanMemory(Mixer):
    """Selective state-space model with a fast-weight memory.

    Args:
        state: n, numbers in the SSM's state per channel.
        expand: inner width e as a multiple of d.
        conv: taps of the causal convolution.
        dt_rank: rank of the map to the step size Δ; None for ⌈d/16⌉.
        heads: number of memories, with one α each; None for the model's number of heads.
        alpha: initial value of α, a memory's factor of decay per token.
        learn_alpha: learn α; False keeps it constant.
        normalise: L2-normalise queries and keys of the memory; False computes eq. 31-32 literally.
        chunk_size: tokens per chunk of the memory's chunkwise form.
    """

    component = "mamba"
    directions: ClassVar[frozenset[Direction]] = CAUSAL
    forms = ("chunkwise", "recurrent")
    source = "M9; TITAN eq. 29-32; arXiv 2312.00752"
    cost = "t·d·(d + n + k)"
    state_size = "e·(n + conv − 1 + k)"

    def __init__(
        self,
        site: Site,
        parts: Parts,
        *,
        state: PositiveInt = 16,
        expand: PositiveInt = 2,
        conv: PositiveInt = 4,
        dt_rank: PositiveInt | None = None,
        heads: PositiveInt | None = None,
        alpha: OpenFraction = 0.9,
        learn_alpha: bool = True,
        normalise: bool = True,
        chunk_size: PositiveInt = 64,
    ) -> None:
        super().__init__()
        heads = heads or site.heads
        if site.dim % heads:
            raise ValueError(f"heads={heads} does not divide the model width {site.dim}")
        self.ssm = SelectiveSSM(
            site.dim, parts.linear, state=state, expand=expand, conv=conv, dt_rank=dt_rank
        )
        self.memory = FastWeightMemory(
            site.dim,
            self.ssm.inner,
            parts.linear,
            heads=heads,
            alpha=alpha,
            learn_alpha=learn_alpha,
            normalise=normalise,
            chunk=chunk_size,
        )
        self.out_proj = parts.linear(self.ssm.inner, site.dim, bias=False, role="out")

    def init_state(self, batch: int) -> TitanState:
        return TitanState(self.ssm.init_state(batch), self.memory.init_state(batch))

    def forward(self, x: Tensor, ctx: Context, state: TitanState | None = None) -> Out:
        ssm, memory = state or (None, None)
        y, gate, ssm = self.ssm(x, ctx.mask, ssm)
        r, memory = self.memory(x, ctx.mask, memory)
        y = (y + r) * gate
        return Out(self.out_proj(y.to(x.dtype)), None if state is None else TitanState(ssm, memory))
