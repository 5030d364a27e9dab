"""Weights and activations with a scale per block: MXFP4 and NVFP4, simulated.

    y = x̂ · Ŵᵀ + b,   x̂ = E2M1(x / s_x)·s_x,   Ŵ = E2M1(W / s_W)·s_W

Blocks run along the axis that a product sums over, in x and in W. Products are those of floats:
this shows what the rounding costs, not what the format gains. Gradients are straight-through. The
recipes that train all of a model in FP4 also round gradients, stochastically and after a rotation;
here backward products are in full precision.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from chimera.contract import Role
from chimera.ops.minifloat import E2M1, minifloat, scaled
from chimera.ops.straight import straight
from chimera.ops.ternary import Rule
from chimera.quant.shared.inputs import Ties, nudge
from chimera.quant.shared.layers import LayerQuantiser, QuantisedEmbedding, QuantisedLinear

Scales = Callable[..., Tensor]


class Blocks(nn.Module):
    """Activations in FP4 with a scale per block of channels; tokens are independent."""

    def __init__(self, scales: Scales, ties: Ties | None = None) -> None:
        super().__init__()
        self.scales = scales
        self.nudge = nudge(ties)

    def forward(self, x: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        return straight(x, scaled(x, self.scales(x.detach(), self.nudge), self.nudge))


class FourBit(LayerQuantiser):
    """Layers and tables in FP4, and `activations` if they are to be; a subclass has the scales."""

    entries: Rule  # of the embedding table
    scales: Scales  # of activations
    activations: bool

    def layer(self, d_in: int, d_out: int, bias: bool, role: Role) -> nn.Module:
        inputs = self.activation(d_in) or nn.Identity()
        return QuantisedLinear(d_in, d_out, bias=bias, role=role, inputs=inputs, rule=self.rule)

    def table(self, entries: int, dim: int) -> nn.Module:
        return QuantisedEmbedding(entries, dim, self.entries)

    def activation(self, dim: int) -> nn.Module | None:
        return Blocks(self.scales, self.ties) if self.activations else None


def rule(scales: Scales, *, rows: bool) -> Rule:
    """Rule of weights in FP4.

    Args:
        scales: [n d] to the scale of each weight, [n d].
        rows: whether a row's scales depend on that row alone.
    """

    def measure(w: Tensor, _: bool) -> tuple[Tensor, Tensor]:
        found = scales(w)
        return found.where(found != 0, 1.0), found

    def code(w: Tensor, step: Tensor) -> Tensor:
        return minifloat(w.to(torch.promote_types(w.dtype, step.dtype)) / step, E2M1)

    return Rule(measure, code, rows)
