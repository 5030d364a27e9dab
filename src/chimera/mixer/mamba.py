"""Mamba: selective state-space model (SPEC M8; arXiv 2312.00752; TITAN 2.5, 4.4, eq. 29-30).

    y = W_out (s ⊙ SiLU(z)),   h_t = exp(Δ_t A) h_{t−1} + Δ_t B_t u_t,   s_t = C_t h_t + D u_t

u, z, Δ, B, C are functions of x, see `chimera.mixer.shared.ssm`. Training uses a chunk-parallel
scan of linear cost that stores one state of sixteen; decoding uses the recurrence. [b t d] to
[b t d].
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from chimera.contract import CAUSAL, Context, Direction, Mixer, Out, Parts, PositiveInt, Site
from chimera.contract_hf import unsupported
from chimera.errors import UserError
from chimera.mixer.shared.ssm import SelectiveSSM, SSMState


class Mamba(Mixer):
    """Selective state-space model (Mamba).

    Args:
        state: n, numbers in the state per channel.
        expand: inner width e as a multiple of d.
        conv: taps of the causal convolution.
        dt_rank: rank of the map to the step size Δ; None for ⌈d/16⌉.
    """

    component = "mamba"
    directions: ClassVar[frozenset[Direction]] = CAUSAL
    forms = ("chunkwise", "recurrent")
    source = "M8; arXiv 2312.00752"
    cost = "t·d·(d + n)"
    state_size = "e·(n + conv − 1)"

    def __init__(
        self,
        site: Site,
        parts: Parts,
        *,
        state: PositiveInt = 16,
        expand: PositiveInt = 2,
        conv: PositiveInt = 4,
        dt_rank: PositiveInt | None = None,
    ) -> None:
        super().__init__()
        self.ssm = SelectiveSSM(
            site.dim, parts.linear, state=state, expand=expand, conv=conv, dt_rank=dt_rank
        )
        self.out_proj = parts.linear(self.ssm.inner, site.dim, bias=False, role="out")

    def init_state(self, batch: int) -> SSMState:
        return self.ssm.init_state(batch)

    def forward(self, x: Tensor, ctx: Context, state: SSMState | None = None) -> Out:
        y, gate, after = self.ssm(x, ctx.mask, state)
        y = y * gate
        return Out(self.out_proj(y.to(x.dtype)), None if state is None else after)

    @classmethod
    def hf_settings(cls, config: Mapping[str, Any], layer: int) -> dict[str, Any] | None:
        """Layers of Mamba."""
        if config["model_type"] != "mamba":
            return None
        wanted = {"use_bias": False, "use_conv_bias": True, "hidden_act": "silu"}
        if other := unsupported(config, **wanted):
            raise UserError(f"config.json has {other}, which mixer=mamba lacks")
        rank = config.get("time_step_rank", "auto")
        return {
            "state": int(config["state_size"]),
            "expand": int(config["expand"]),
            "conv": int(config["conv_kernel"]),
            "dt_rank": None if rank == "auto" else rank,
        }

    def hf_tensors(
        self, tensors: Mapping[str, Tensor], config: Mapping[str, Any]
    ) -> dict[str, Tensor]:
        """One layer's tensors under our names."""
        same = {"in_proj.weight", "x_proj.weight", "A_log", "D"}
        return {f"ssm.{name}": tensors[f"mixer.{name}"] for name in same} | {
            "ssm.conv_weight": tensors["mixer.conv1d.weight"].squeeze(1),
            "ssm.conv_bias": tensors["mixer.conv1d.bias"],
            "ssm.dt_weight": tensors["mixer.dt_proj.weight"],
            "ssm.dt_bias": tensors["mixer.dt_proj.bias"],
            "out_proj.weight": tensors["mixer.out_proj.weight"],
        }
