"""Ternary and 8-bit layers with packed weights, for inference (SPEC Q7).

    y = (inputs(x) · Cᵀ) ⊙ scale + b,   C ∈ {−1, 0, 1} stored in base 3: 8/5 = 1.6 bits each;
                                         linear layers hold it in 2 bits each

Scales keep the dtype of the statistics in training, one per weight matrix or one per row.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Int8
from torch import Tensor, nn

from chimera.contract import Role, Ternary
from chimera.ops import packed as products
from chimera.ops import two_bits
from chimera.ops.integer import product, product_dtype
from chimera.ops.precision import output_dtype, widen
from chimera.ops.trits import PER_BYTE, pack, unpack, unpack_at
from chimera.quant.shared.inputs import NormedPerToken, PerToken, before_grid, has_grid

BLOCK = 640  # rows unpacked at once, a multiple of five


class Packed(nn.Module):
    """Packed codes and their scale, [] or [rows 1]; five codes in a byte, `trits`.

    Args:
        source: trained layer.
        cache: keep the codes unpacked after the first call, one byte per weight.
    """

    trits: Tensor
    scale: Tensor
    codes: Tensor | None

    def __init__(self, source: Ternary, *, cache: bool = False) -> None:
        super().__init__()
        codes, scale = source.ternary()
        self.shape = codes.shape
        self.cache = cache
        self.pack(codes)
        self.register_buffer("scale", scale.detach().clone())
        self.register_buffer("codes", None, persistent=False)

    def pack(self, codes: Int8[Tensor, "n d"]) -> None:
        """Keep codes."""
        self.register_buffer("trits", pack(codes))

    def rows(self, start: int, stop: int) -> Int8[Tensor, "n d"]:
        """Codes of rows `start` to `stop`; `start` is a multiple of five, the start of a byte."""
        width = self.shape[1]
        part = self.trits[start * width // PER_BYTE : -(-stop * width // PER_BYTE)]
        return unpack(part, (stop - start) * width).view(-1, width)

    def cached(self) -> Int8[Tensor, "n d"]:
        """All codes, unpacked by the first call."""
        if self.codes is None:
            self.codes = self.rows(0, self.shape[0])
        return self.codes

    @property
    def weight(self) -> Float[Tensor, "n d"]:
        """Unpacked quantised weight, for code that needs its shape, dtype or device."""
        return self.rows(0, self.shape[0]) * self.scale

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self.codes = None


class PackedTernaryLinear(Packed):
    """Linear layer with packed weights; its output equals that of the trained layer in evaluation.

    In memory a code has two bits, in a file 1.6. With a grid per token at the end of the inputs the
    kernel of `ops.packed` multiplies the packed codes; that of the CPU has an absmax grid inside,
    that of a GPU serves few tokens, and for more it unpacks the codes in each call. Without it (no
    compiler, no Triton) codes of one byte serve on a CPU with VNNI and on a GPU. Elsewhere, and
    with other inputs, blocks of rows are unpacked in each call; no path keeps a float copy.
    Gradients of x go through the blocks.

    Args:
        source: trained layer: `Ternary`, with `role`, `inputs` and `bias`.
        cache: keep the codes in one byte each from the first call on, where no kernel serves.
    """

    bits: Tensor
    bias: Tensor | None

    def __init__(self, source: Any, *, cache: bool = False) -> None:
        super().__init__(source, cache=cache)
        self.role: Role = source.role
        self.inputs = copy.deepcopy(source.inputs).eval()
        self.on_grid = has_grid(self.inputs)
        bias = source.bias
        self.register_buffer("bias", None if bias is None else bias.detach().clone())

    def pack(self, codes: Int8[Tensor, "n d"]) -> None:
        self.register_buffer("bits", two_bits.pack(codes), persistent=False)

    def train(self, mode: bool = True) -> PackedTernaryLinear:
        """Stay in evaluation mode: packed weights are not trained."""
        return super().train(False)

    def rows(self, start: int, stop: int) -> Int8[Tensor, "n d"]:
        """Codes of rows `start` to `stop`."""
        return two_bits.unpack(self.bits[start:stop], self.shape[1])

    @property
    def trits(self) -> Tensor:  # type: ignore[override]
        """The codes as a file has them, five in a byte."""
        return pack(self.rows(0, self.shape[0]))

    def forward(self, x: Float[Tensor, "*b i"]) -> Float[Tensor, "*b o"]:
        differentiable = torch.is_grad_enabled() and x.requires_grad
        if self.on_grid and not differentiable and not torch.compiler.is_compiling():
            dtype = output_dtype(x)
            y = self._integers(x, dtype)
            if y is not None:
                return y if y.dtype == dtype else y.to(dtype)
        x = self.inputs(widen(x)).to(x.dtype)
        height = self.shape[0]
        if self.cache:
            y = F.linear(x, self.cached().to(x.dtype))
        else:
            blocks = (self.rows(i, min(i + BLOCK, height)) for i in range(0, height, BLOCK))
            y = torch.cat([F.linear(x, block.to(x.dtype)) for block in blocks], -1)
        y = y * self.scale.flatten().to(y.dtype)
        return y if self.bias is None else y + self.bias

    def _integers(
        self, x: Float[Tensor, "*b i"], dtype: torch.dtype
    ) -> Float[Tensor, "*b o"] | None:
        """The product of codes, in `dtype` or wider; None where it is not faster than floats."""
        alone = isinstance(self.inputs, PerToken | NormedPerToken)  # widens numbers as it reads
        x, last = before_grid(self.inputs, x if alone else widen(x))
        if isinstance(last, PerToken | NormedPerToken):
            eps = last.eps if isinstance(last, NormedPerToken) else None
            own: Any = {"bits": last.bits, "eps": eps, "nudge": last.nudge}
            y = products.linear(widen(x), self.bits, self.scale, self.bias, **own)
            if y is not None:
                return y
        grid = last.grid(x)
        shape = (*x.shape[:-1], self.shape[0])
        a = grid.codes.reshape(-1, x.shape[-1])
        step = grid.step.reshape(-1, 1)
        y = products.scaled(a, step, self.bits, self.scale, self.bias, dtype)
        if y is not None:
            return y.view(shape)
        sums = products.product(a, self.bits)
        if sums is None:
            if product_dtype(x.device, "int8") != torch.int8:
                return None
            sums = product(a, self.cached())
        y = sums.view(shape) * grid.step * self.scale.flatten()
        return y if self.bias is None else y + self.bias

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        destination[prefix + "trits"] = self.trits
        super()._save_to_state_dict(destination, prefix, keep_vars)

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, meta: Any, strict: bool, missing: Any, *rest: Any
    ) -> None:
        state = dict(state_dict)
        name = prefix + "trits"
        trits = state.pop(name, None)
        super()._load_from_state_dict(state, prefix, meta, strict, missing, *rest)
        if trits is None:
            missing.append(name)
            return
        count = self.shape.numel()
        if trits.shape != (-(-count // PER_BYTE),):
            rest[-1].append(f"size mismatch for {name}: {tuple(trits.shape)} of {count} weights")
            return
        codes = unpack(trits.to(self.bits.device), count).view(self.shape)
        self.bits = two_bits.pack(codes)
        self.codes = None


class PackedTernaryEmbedding(Packed):
    """Embedding that unpacks only the rows it looks up; `table()` unpacks all for a tied head."""

    component = "embedding"

    def forward(self, ids: Int[Tensor, "*b"]) -> Float[Tensor, "*b d"]:
        places = ids[..., None] * self.shape[1] + torch.arange(self.shape[1], device=ids.device)
        scale = self.scale.flatten()[ids][..., None] if self.scale.ndim else self.scale
        return unpack_at(self.trits, places) * scale

    def table(self) -> Float[Tensor, "entries d"]:
        """Quantised table, [entries d]."""
        return self.cached() * self.scale if self.cache else self.weight


class PackedInteger(nn.Module):
    """Integer codes, one in a byte, and their scale [rows 1].

    Args:
        source: trained layer or embedding with an integer `rule` of at most 8 bits.
    """

    codes: Tensor
    scale: Tensor

    def __init__(self, source: Any) -> None:
        super().__init__()
        codes, scale = source.rule.codes(source.weight)
        self.register_buffer("codes", codes.to(torch.int8))
        self.register_buffer("scale", scale.detach().clone())

    @property
    def weight(self) -> Float[Tensor, "n d"]:
        """Quantised weight of the trained layer."""
        return self.codes * self.scale


class PackedIntegerLinear(PackedInteger):
    """Linear layer whose weights take a byte each, in memory too; for inference."""

    bias: Tensor | None

    def __init__(self, source: Any) -> None:
        super().__init__(source)
        self.role: Role = source.role
        self.inputs = copy.deepcopy(source.inputs).eval()
        bias = source.bias
        self.register_buffer("bias", None if bias is None else bias.detach().clone())

    def train(self, mode: bool = True) -> PackedIntegerLinear:
        """Stay in evaluation mode: packed weights are not trained."""
        return super().train(False)

    def forward(self, x: Float[Tensor, "*b i"]) -> Float[Tensor, "*b o"]:
        weight = self.weight.to(x.dtype)
        return F.linear(self.inputs(widen(x)).to(x.dtype), weight, self.bias)


class PackedIntegerEmbedding(PackedInteger):
    """Embedding whose entries take a byte a number; `table()` serves a tied head."""

    component = "embedding"

    def forward(self, ids: Int[Tensor, "*b"]) -> Float[Tensor, "*b d"]:
        return F.embedding(ids, self.codes) * self.scale[ids]

    def table(self) -> Float[Tensor, "entries d"]:
        """Quantised table, [entries d]."""
        return self.weight
