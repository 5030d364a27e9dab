"""HBitLinear: rotated 4-bit activations, ternary weights by output channel (SPEC Q4; QDYT 3.1-3.2).

    y = Quant₄(x·H) · Ŵᵀ,   Ŵ_ij = s_i·clip(round(W_ij/s_i), −1, 1),   s_i = mean_j|W_ij| + ε

H is orthonormal, block-diagonal where the width is no power of two (768 = 3 · 256). No norm inside
and no biases: the paper has QDyT before it, and BitLinear has none. Shapes: [… d_in] to [… d_out].

Gradients of the weight, for G = ∂L/∂Ŵ (SPEC E7):
    standard      ∂L/∂W = G
    lsq           ∂L/∂W_i = G_i / s_i, as the paper writes it. This is not LSQ: no step is learned,
                  and what is scaled is the gradient of the weight, by row
    lsq_learned   LSQ (arXiv 1902.08153): s_i is a parameter, from 2·mean_j|W_ij|, trained with
                  gradient scale 1/√d_in; ∂L/∂W = G inside the grid and 0 outside
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float, Int8
from torch import Tensor, nn

from chimera.contract import Fraction, Role
from chimera.ops.grid import FLOOR, wide
from chimera.ops.straight import straight
from chimera.ops.ternary import LearnedStep, Measured, mean_size, round_codes, ternary
from chimera.quant.shared.inputs import Bits, PerChannel, PerToken, Rotation, Transform
from chimera.quant.shared.layers import Embedding, Linear, TernaryEmbedding, TernaryLinear

ROTATED: dict[str, frozenset[str]] = {
    "all": frozenset({"qkv", "gate", "out", "up", "down", "head"}),
    "attention": frozenset({"qkv", "gate", "out"}),
    "none": frozenset(),
}


def absmean_eps(w: Tensor, rows: bool) -> Measured:
    """The paper adds ε to the mean where BitNet takes the larger of the two."""
    scale = mean_size(w, rows) + FLOOR
    return scale, scale


RULE = ternary(absmean_eps, rows=True)


class HBitLinear(TernaryLinear):
    """Ternary linear layer with the gradient rule `standard` or `lsq`."""

    def __init__(
        self, d_in: int, d_out: int, *, role: Role, inputs: nn.Module, divide: bool
    ) -> None:
        super().__init__(d_in, d_out, bias=False, role=role, inputs=inputs, rule=RULE)
        self.divide = divide

    def quantised(self) -> Float[Tensor, "o i"]:
        codes, scale = self.rule.codes(self.weight)
        values = codes.mul_(scale).to(self.weight.dtype)
        return straight(self.weight, values, scale if self.divide else None)


class LSQLinear(TernaryLinear):
    """Ternary linear layer whose scales are learned (LSQ).

    The first forward pass sets the scales of rows that are not all zero; later ones train them.
    """

    def __init__(self, d_in: int, d_out: int, *, role: Role, inputs: nn.Module) -> None:
        super().__init__(d_in, d_out, bias=False, role=role, inputs=inputs, rule=RULE)
        self.step = nn.Parameter(torch.zeros(d_out, 1))
        self._started = False  # spares a look at the parameter, which a GPU would have to wait for

    @torch.no_grad()
    def _start(self) -> None:
        first = 2 * mean_size(self.weight, rows=True).to(self.step.dtype)
        self.step.copy_(torch.where(self.step != 0, self.step, first))
        self._started = bool((self.step != 0).all())

    def _step(self) -> Float[Tensor, "o 1"]:
        if not self._started:
            self._start()
        return self.step.to(wide(self.step)).clamp(min=FLOOR)

    def quantised(self) -> Float[Tensor, "o i"]:
        return LearnedStep.apply(self.weight, self._step())

    def ternary(self) -> tuple[Int8[Tensor, "o i"], Tensor]:
        step = self._step().detach()
        return round_codes(self.weight.detach(), step, 1).to(torch.int8), step


class HBit:
    """Rotation, 4-bit activations, ternary weights.

    Args:
        ste: gradient rule of the weights, see above.
        activations: maxima of the grid `per_channel` over the batch (the paper; it leaks across
            sequences in training, evaluation uses running maxima) or `per_token`.
        activation_bits: of the activation grid.
        momentum: of the running maxima.
        hadamard: which layers rotate: `all`, `attention` (qkv, gate and out), `none`.
        transform: `dense` x @ H in O(d²) or `fast` butterflies in O(d log d).
        embedding: a ternary table too, one scale per entry. The paper's 54 MB need it: its table
            alone would be 47 MB in 16 bits.
        head: a ternary output head too. A head tied to the table is what the table is.
    """

    def __init__(
        self,
        *,
        ste: Literal["lsq", "standard", "lsq_learned"] = "lsq",
        activations: Literal["per_channel", "per_token"] = "per_channel",
        activation_bits: Bits = 4,
        momentum: Fraction = 0.1,
        hadamard: Literal["all", "attention", "none"] = "all",
        transform: Transform = "fast",
        embedding: bool = False,
        head: bool = False,
    ) -> None:
        self.ste, self.transform, self.rotated = ste, transform, ROTATED[hadamard]
        self.per_channel = activations == "per_channel"
        self.bits, self.momentum = activation_bits, momentum
        self.quantise_embedding, self.quantise_head = embedding, head

    def linear(self, d_in: int, d_out: int, *, bias: bool, role: Role) -> nn.Module:
        if role == "head" and not self.quantise_head:
            return Linear(d_in, d_out, bias=bias, role=role)
        rotation = [Rotation(d_in, self.transform)] if role in self.rotated else []
        inputs = nn.Sequential(*rotation, self._grid(d_in))
        if self.ste == "lsq_learned":
            return LSQLinear(d_in, d_out, role=role, inputs=inputs)
        return HBitLinear(d_in, d_out, role=role, inputs=inputs, divide=self.ste == "lsq")

    def embedding(self, entries: int, dim: int) -> nn.Module:
        if not self.quantise_embedding:
            return Embedding(entries, dim)
        return TernaryEmbedding(entries, dim, RULE)

    def _grid(self, dim: int) -> nn.Module:
        return (
            PerChannel(dim, self.bits, self.momentum) if self.per_channel else PerToken(self.bits)
        )
