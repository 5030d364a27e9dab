"""Ternary layers with packed weights, for inference (SPEC Q7).

    y = (inputs(x) · Cᵀ) ⊙ scale + b,   C ∈ {−1, 0, 1} stored in base 3: 8/5 = 1.6 bits each

Scales keep the dtype of the statistics in training, one per weight matrix or one per row.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Int8
from torch import Tensor, nn

from chimera.contract import Packable, Role
from chimera.ops.precision import widen
from chimera.ops.trits import PER_BYTE, pack, unpack, unpack_at

BLOCK = 640  # rows unpacked at once, a multiple of five


class Packed(nn.Module):
    """Packed codes and their scale, [] or [rows 1].

    Args:
        source: trained layer.
        cache: keep the codes unpacked after the first call, one byte per weight.
    """

    trits: Tensor
    scale: Tensor
    codes: Tensor | None

    def __init__(self, source: Packable, *, cache: bool = False) -> None:
        super().__init__()
        codes, scale = source.ternary()
        self.shape, self.cache = codes.shape, cache
        self.register_buffer("trits", pack(codes))
        self.register_buffer("scale", scale.detach().clone())
        self.register_buffer("codes", None, persistent=False)

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

    Args:
        source: trained layer: `Packable`, with `role`, `inputs` and `bias`.
        cache: True unpacks once, to a byte per weight, for fast decoding; False unpacks blocks of
            rows in every call.
    """

    bias: Tensor | None

    def __init__(self, source: Any, *, cache: bool = False) -> None:
        super().__init__(source, cache=cache)
        self.role: Role = source.role
        self.inputs = copy.deepcopy(source.inputs).eval()
        bias = source.bias
        self.register_buffer("bias", None if bias is None else bias.detach().clone())

    def train(self, mode: bool = True) -> PackedTernaryLinear:
        """Stay in evaluation mode: packed weights are not trained."""
        return super().train(False)

    def forward(self, x: Float[Tensor, "*b i"]) -> Float[Tensor, "*b o"]:
        x, height = self.inputs(widen(x)).to(x.dtype), self.shape[0]
        if self.cache:
            y = F.linear(x, self.cached().to(x.dtype))
        else:
            blocks = (self.rows(i, min(i + BLOCK, height)) for i in range(0, height, BLOCK))
            y = torch.cat([F.linear(x, block.to(x.dtype)) for block in blocks], -1)
        y = y * self.scale.flatten().to(y.dtype)
        return y if self.bias is None else y + self.bias


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
