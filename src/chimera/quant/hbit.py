"""HBitLinear: rotated 4-bit activations, ternary weights per output row (SPEC Q4; QDYT 3.1-3.2).

    y = Quant₄(x·H) · Ŵᵀ,   Ŵ_ij = s_i·clip(round(W_ij/s_i), −1, 1),   s_i = mean_j|W_ij| + ε

H is orthonormal; it is block-diagonal if the width is not a power of two (768 = 3 · 256). The layer
has no norm, because the paper puts QDyT before it, and no biases, as BitLinear. Shapes: [… d_in] to
[… d_out].

`quant.shared.rows` has the layers and the gradient rules of the weight.
"""

from __future__ import annotations

from typing import Any, Literal, cast

from torch import nn

from chimera.contract import Fraction, Role
from chimera.quant.shared.codes import PER_CHANNEL, Compute
from chimera.quant.shared.inputs import Bits, Rotation, Ties, Transform
from chimera.quant.shared.layers import LayerQuantiser, TernaryEmbedding
from chimera.quant.shared.rows import RULE, HBitLinear, LSQLinear

ROTATED: dict[str, frozenset[str]] = {
    "all": frozenset({"qkv", "gate", "out", "up", "down", "head"}),
    "attention": frozenset({"qkv", "gate", "out"}),
    "none": frozenset(),
}


class HBit(LayerQuantiser):
    """Hadamard rotation, 4-bit activations, ternary weights.

    Args:
        ste: gradient rule of the weights (`quant.shared.rows`); with AdamW, `lsq` trains as
            `standard`.
        activations: maxima of the grid, `per_channel` over the batch (as in the paper; leaks across
            sequences in training, evaluation uses running maxima) or `per_token`.
        activation_bits: bits of the activation grid.
        momentum: weight of a new batch in the running maxima.
        hadamard: layers with rotation: `all`, `attention` (qkv, gate and out), `none`.
        transform: `dense` for x @ H in O(d²), `fast` for butterflies in O(d log d).
        embedding: quantise the embedding table too, with one scale per entry. The paper's 54 MB
            require it: in 16 bits, the table alone takes 47 MB.
        head: quantise the output head too. A tied head has the format of the table.
        compute: arithmetic of the products: floats (`simulate`) or integer codes (`int8`, `bf16`;
            they need `activations=per_token`).
        ties: halves on the grid of activations: `away` from zero, or None, to even.
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
        compute: Compute = "simulate",
        ties: Ties | None = None,
    ) -> None:
        self.ste = ste
        self.transform = transform
        self.rotated = ROTATED[hadamard]
        self.per_channel = activations == "per_channel"
        self.bits = activation_bits
        self.momentum = momentum
        obstacle = PER_CHANNEL if self.per_channel else ""
        super().__init__(embedding, head, ties, compute, obstacle)

    def layer(self, d_in: int, d_out: int, bias: bool, role: Role) -> nn.Module:
        rotation = [Rotation(d_in, self.transform)] if role in self.rotated else []
        inputs = nn.Sequential(*rotation, cast(nn.Module, self.activation(d_in)))
        options: Any = {"role": role, "inputs": inputs, "compute": self.compute}
        if self.ste == "lsq_learned":
            return LSQLinear(d_in, d_out, **options)
        return HBitLinear(d_in, d_out, divide=self.ste == "lsq", **options)

    def table(self, entries: int, dim: int) -> nn.Module:
        return TernaryEmbedding(entries, dim, RULE)
