"""Linear layers and embeddings with a role, and base classes of quantised ones (SPEC Q1-Q5).

    y = inputs(x) · Ŵᵀ + b,   Ŵ = Rule(W)

Latent weights stay in full precision. With `compute=simulate` every forward pass computes Ŵ again,
without a cache: it would have to detect all changes of weights (optimiser steps, loads, assignments
to `.data`). With `int8` and `bf16` the layer multiplies the integer codes (`ops.integer`), which it
keeps until the weight changes (`shared.codes`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int, Int8
from torch import Tensor, nn

from chimera.contract import Role
from chimera.contract_gguf import GGUF, in_gguf, joined
from chimera.ops.integer import Arithmetic, Codes, Grid, integer_linear, prepared
from chimera.ops.precision import output_dtype, widen
from chimera.ops.straight import straight
from chimera.ops.ternary import Rule
from chimera.ops.together import hooked, linear
from chimera.quant.shared.codes import CodeCache, Compute, arithmetic
from chimera.quant.shared.inputs import PerChannel, PerToken, Ties, on_grid, product, rounded
from chimera.quant.shared.packed import (
    PackedIntegerEmbedding,
    PackedIntegerLinear,
    PackedTernaryEmbedding,
    PackedTernaryLinear,
)


class Linear(nn.Linear):
    """torch's Linear with a `role`."""

    role: Role

    def __init__(self, d_in: int, d_out: int, *, bias: bool, role: Role) -> None:
        super().__init__(d_in, d_out, bias=bias)
        self.role = role

    def alike(self, other: nn.Module) -> bool:
        """Whether one product can compute both layers, in training (`ops.together`)."""
        if type(other) is not type(self) or (other.bias is None) != (self.bias is None):
            return False
        return self.training and not hooked(self, other)

    def joined(self, x: Float[Tensor, "*b i"], groups: Sequence[Any]) -> tuple[Tensor, ...]:
        """What layers that are alike give for x, those of a group side by side."""
        layers = [layer for group in groups for layer in group]
        widths = [sum(layer.out_features for layer in group) for group in groups]
        return self._laid(torch.cat, x, layers).split(widths, -1)

    def stacks(self, other: nn.Module) -> bool:
        """Whether `stacked` computes both: alike, of one shape, and they keep only weights."""
        bare = self.alike(other) and next(self.buffers(), None) is None
        return bare and other.weight.shape == self.weight.shape

    def stacked(self, x: Float[Tensor, "n c i"], layers: Sequence[Any]) -> Float[Tensor, "n c o"]:
        """What layers that are alike give, each for its own rows."""
        return self._laid(torch.stack, x, layers)

    def _laid(self, lay: Callable[..., Tensor], x: Tensor, layers: Sequence[Any]) -> Tensor:
        # A compiled graph moves fewer bytes if weights are cast before they are joined. Eagerly,
        # each cast would be a kernel, and autocast casts the joined weight.
        dtype = output_dtype(x) if torch.compiler.is_compiling() else self.weight.dtype
        weight = lay([layer.quantised().to(dtype) for layer in layers])
        biases = [layer.bias.to(dtype) for layer in layers if self.bias is not None]
        return self.multiplied(x, weight, lay(biases) if biases else None)

    def multiplied(
        self, x: Float[Tensor, "*b i"], weight: Float[Tensor, "o i"], bias: Tensor | None
    ) -> Float[Tensor, "*b o"]:
        """x with a weight of the forward pass."""
        return linear(x, weight, bias)

    def quantised(self) -> Float[Tensor, "o i"]:
        """The weight of the forward pass."""
        return self.weight

    def gguf(self) -> GGUF:
        """Weight and bias, in the values of the forward pass."""
        return _in_gguf(self.weight, self.bias)


def _in_gguf(weight: Tensor, bias: Tensor | None) -> GGUF:
    if bias is None:
        return GGUF({"weight": weight})
    needs = {"biases in linear layers": frozenset({"llama"})}
    return GGUF({"weight": weight, "bias": bias}, needs=needs)


class Embedding(nn.Embedding):
    """torch's Embedding with `table()`, the weights of a tied head."""

    component = "embedding"

    def table(self) -> Float[Tensor, "entries d"]:
        """Weights of the forward pass, [entries d]."""
        return self.weight

    def gguf(self) -> GGUF:
        """The table, in the values of the forward pass."""
        return GGUF({"weight": self.table().detach()})


class LayerQuantiser:
    """Quantiser of linear layers, and of the head and the embedding table where a setting says so.

    A subclass has `layer`, and `table` if the table is not ternary, which make what is quantised.
    """

    quantises = True
    bits: Any  # of the grid of activations; None without one
    rule: Any  # of the weights, ternary unless a subclass has its own `table`
    per_channel = False  # grids of activations per channel, whose maxima move by `momentum`
    momentum = 0.1
    layer: Callable[[int, int, bool, Role], nn.Module]

    def __init__(
        self,
        embedding: bool,
        head: bool,
        ties: Ties | None,
        compute: Compute = "simulate",
        obstacle: str = "",
    ) -> None:
        self.quantise_embedding = embedding
        self.quantise_head = head
        self.ties: Ties | None = ties
        self.compute = arithmetic(compute, obstacle)

    def linear(self, d_in: int, d_out: int, *, bias: bool, role: Role) -> nn.Module:
        if role == "head" and not self.quantise_head:
            return Linear(d_in, d_out, bias=bias, role=role)
        return self.layer(d_in, d_out, bias, role)

    def embedding(self, entries: int, dim: int) -> nn.Module:
        return self.table(entries, dim) if self.quantise_embedding else Embedding(entries, dim)

    def table(self, entries: int, dim: int) -> nn.Module:
        return TernaryEmbedding(entries, dim, self.rule)

    def activation(self, dim: int) -> nn.Module | None:
        if self.per_channel and self.bits is not None:
            return PerChannel(dim, self.bits, self.momentum, self.ties)
        return None if self.bits is None else PerToken(self.bits, self.ties)


class QuantisedLinear(Linear):
    """Linear layer with quantised weights.

    Args:
        d_in, d_out, bias, role: see `Linear`.
        inputs: module applied to x first: norm, rotation, activation grid.
        rule: quantisation rule of the weights; None for full precision.
        compute: `simulate` multiplies x̂ and Ŵ as floats, `int8` and `bf16` their codes; these need
            a rule, and inputs that end in a grid per token.
    """

    def __init__(
        self,
        d_in: int,
        d_out: int,
        *,
        bias: bool,
        role: Role,
        inputs: nn.Module,
        rule: Rule | None,
        compute: Arithmetic = "simulate",
    ) -> None:
        super().__init__(d_in, d_out, bias=bias, role=role)
        self.inputs = inputs
        self.rule = rule
        self.compute = compute
        self.kept = CodeCache()

    def quantised(self) -> Float[Tensor, "o i"]:
        """Ŵ, with a straight-through gradient to the latent weight."""
        w = self.weight
        return w if self.rule is None else straight(w, self.rule.quantised(w))

    def alike(self, other: nn.Module) -> bool:
        """A quantiser rounds the inputs of layers of one role alike."""
        return self.compute == "simulate" and super().alike(other) and other.role == self.role

    def joined(self, x: Float[Tensor, "*b i"], groups: Sequence[Any]) -> tuple[Tensor, ...]:
        with torch.no_grad():
            for layer in [layer for group in groups for layer in group][1:]:
                rounded(layer.inputs, x)  # for the statistics that its grid keeps
        return super().joined(x, groups)

    def multiplied(
        self, x: Float[Tensor, "*b i"], weight: Float[Tensor, "o i"], bias: Tensor | None
    ) -> Float[Tensor, "*b o"]:
        return product(self.inputs, x, weight, bias)

    def rounded(self) -> Codes:
        """Codes of the weight, made once until it changes."""
        return self.kept.get(self.weight, lambda: prepared(*self._codes(), self.compute))

    def _codes(self) -> tuple[Tensor, Tensor]:
        assert self.rule is not None
        return self.rule.codes(self.weight)

    def forward(self, x: Float[Tensor, "*b i"]) -> Float[Tensor, "*b o"]:
        if self.compute == "simulate":
            return self.multiplied(x, self.quantised(), self.bias)
        y = self._product(*on_grid(self.inputs, widen(x)), self.rounded(), output_dtype(x))
        return y if self.bias is None else y + self.bias.to(y.dtype)

    def _product(self, x: Tensor, grid: Grid, codes: Codes, dtype: torch.dtype) -> Tensor:
        return integer_linear(x, self.weight, grid, codes, dtype=dtype)

    def gguf(self) -> GGUF:
        """Weight and bias in the values of the forward pass, and what precedes the product."""
        own = _in_gguf(self.quantised().detach(), self.bias)
        before = GGUF() if isinstance(self.inputs, nn.Identity) else in_gguf(self.inputs, "quant")
        return joined({}, own, before)

    def sharded(self) -> None:
        """Keep codes while the shards stay the same; called when the weight is in shards."""
        self.kept.follow(self.weight)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self.kept.clear()


class TernaryLinear(QuantisedLinear):
    """Quantised linear layer with a ternary rule (or binary, a special case)."""

    rule: Rule

    def ternary(self) -> tuple[Int8[Tensor, "o i"], Tensor]:
        """Codes and scale of the forward pass."""
        codes, scale = self.rule.codes(self.weight)
        return codes.to(torch.int8), scale

    def packed(self, *, cache: bool = False) -> PackedTernaryLinear:
        """Layer for inference with packed weights."""
        return PackedTernaryLinear(self, cache=cache)


class IntegerLinear(QuantisedLinear):
    """Quantised linear layer with an integer rule of at most 8 bits."""

    def packed(self, *, cache: bool = False) -> PackedIntegerLinear:
        """Layer for inference with a weight in a byte."""
        return PackedIntegerLinear(self)


class QuantisedEmbedding(Embedding):
    """Embedding with a quantised table (BitEmbedding, TITAN eq. 17)."""

    def __init__(self, entries: int, dim: int, rule: Rule) -> None:
        super().__init__(entries, dim)
        self.rule = rule

    def table(self) -> Float[Tensor, "entries d"]:
        return straight(self.weight, self.rule.quantised(self.weight))

    def forward(self, ids: Int[Tensor, "*b"]) -> Float[Tensor, "*b d"]:
        rows = super().forward(ids)
        return straight(rows, self.rule.quantised(rows, self.weight))


class IntegerEmbedding(QuantisedEmbedding):
    """Quantised embedding with an integer rule of at most 8 bits."""

    def packed(self, *, cache: bool = False) -> PackedIntegerEmbedding:
        """Embedding for inference with a number in a byte."""
        return PackedIntegerEmbedding(self)


class TernaryEmbedding(QuantisedEmbedding):
    """Quantised embedding with a ternary rule."""

    def ternary(self) -> tuple[Int8[Tensor, "entries d"], Tensor]:
        """Codes and scale of the table."""
        codes, scale = self.rule.codes(self.weight)
        return codes.to(torch.int8), scale

    def packed(self, *, cache: bool = False) -> PackedTernaryEmbedding:
        """Embedding for inference with a packed table."""
        return PackedTernaryEmbedding(self, cache=cache)
