"""HBitLinear: rotated 4-bit activations, ternary weights per output row (SPEC Q4; QDYT 3.1-3.2).

    y = Quant₄(x·H) · Ŵᵀ,   Ŵ_ij = s_i·clip(round(W_ij/s_i), −1, 1),   s_i = mean_j|W_ij| + ε

H is orthonormal; it is block-diagonal if the width is not a power of two (768 = 3 · 256). The layer
has no norm, because the paper puts QDyT before it, and no biases, as BitLinear. Shapes: [… d_in] to
[… d_out].

Gradient rules of the weight, with G = ∂L/∂Ŵ (SPEC E7):
    standard      ∂L/∂W = G
    lsq           ∂L/∂W_i = G_i / s_i, as in the paper. Unlike LSQ, this rule learns no step. It
                  multiplies the gradient of a row by 1/s_i, which changes slowly and is nearly
                  constant over AdamW's memory; AdamW divides a gradient by its own size, so the
                  factor cancels and training is that of `standard`, up to ε and clipping
    lsq_learned   LSQ (arXiv 1902.08153): s_i is a parameter, initially 2·mean_j|W_ij|, trained with
                  gradient scale 1/√d_in; ∂L/∂W = G inside the grid and 0 outside. The rule that
                  tests LSQ
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float, Int8
from torch import Tensor, nn

from chimera.contract import Fraction, Role
from chimera.ops.grid import FLOOR
from chimera.ops.precision import wide
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
    """mean|W| + ε, as in the paper; BitNet uses max(mean|W|, ε)."""
    scale = mean_size(w, rows) + FLOOR
    return scale, scale


RULE = ternary(absmean_eps, rows=True)


class HBitLinear(TernaryLinear):
    """Ternary linear layer with gradient rule `standard` (divide=False) or `lsq` (divide=True)."""

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
    """Ternary linear layer with learned scales (LSQ).

    The first forward pass initialises the scales of rows that are not all zero.
    """

    def __init__(self, d_in: int, d_out: int, *, role: Role, inputs: nn.Module) -> None:
        super().__init__(d_in, d_out, bias=False, role=role, inputs=inputs, rule=RULE)
        self.step = nn.Parameter(torch.zeros(d_out, 1))
        self._initialised = False  # avoids a test of the parameter, which synchronises with a GPU

    @torch.no_grad()
    def initialise(self) -> None:
        """Set the scales of rows that have none yet."""
        initial = 2 * mean_size(self.weight, rows=True).to(self.step.dtype)
        self.step.copy_(torch.where(self.step != 0, self.step, initial))
        self._initialised = bool((self.step != 0).all())

    def _step(self) -> Float[Tensor, "o 1"]:
        if not self._initialised:
            self.initialise()
        return self.step.to(wide(self.step)).clamp(min=FLOOR)

    def quantised(self) -> Float[Tensor, "o i"]:
        return LearnedStep.apply(self.weight, self._step())

    def ternary(self) -> tuple[Int8[Tensor, "o i"], Tensor]:
        step = self._step().detach()
        return round_codes(self.weight.detach(), step, 1).to(torch.int8), step


class HBit:
    """Hadamard rotation, 4-bit activations, ternary weights.

    Args:
        ste: gradient rule of the weights, see above; with AdamW, `lsq` trains as `standard`.
        activations: maxima of the grid, `per_channel` over the batch (as in the paper; leaks across
            sequences in training, evaluation uses running maxima) or `per_token`.
        activation_bits: bits of the activation grid.
        momentum: weight of a new batch in the running maxima.
        hadamard: layers with rotation: `all`, `attention` (qkv, gate and out), `none`.
        transform: `dense` for x @ H in O(d²), `fast` for butterflies in O(d log d).
        embedding: quantise the embedding table too, with one scale per entry. The paper's 54 MB
            require it: in 16 bits, the table alone takes 47 MB.
        head: quantise the output head too. A tied head has the format of the table.
    """

    quantises = True

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
        inputs = nn.Sequential(*rotation, self.activation(d_in))
        if self.ste == "lsq_learned":
            return LSQLinear(d_in, d_out, role=role, inputs=inputs)
        return HBitLinear(d_in, d_out, role=role, inputs=inputs, divide=self.ste == "lsq")

    def embedding(self, entries: int, dim: int) -> nn.Module:
        if not self.quantise_embedding:
            return Embedding(entries, dim)
        return TernaryEmbedding(entries, dim, RULE)

    def activation(self, dim: int) -> nn.Module:
        return (
            PerChannel(dim, self.bits, self.momentum) if self.per_channel else PerToken(self.bits)
        )
