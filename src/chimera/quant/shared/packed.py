"""Ternary layers that compute from packed weights (SPEC Q7).

    y = (inputs(x) · Cᵀ) ⊙ scale + b,   C ∈ {−1, 0, 1} held in base 3: 8/5 = 1.6 bits each

Scales stay in the dtype of training's statistics, one per weight matrix or one per row.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Int8
from torch import Tensor, nn

from chimera.contract import Packable, Role
from chimera.ops.trits import PER_BYTE, pack, unpack, unpack_at

BLOCK = 640  # rows unpacked at a time, a multiple of five


class Packed(nn.Module):
    """Codes in base 3 and their scale, [] or [rows 1]."""

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
        """Codes of these rows; `start` is a multiple of five rows, where bytes and rows meet."""
        width = self.shape[1]
        part = self.trits[start * width // PER_BYTE : -(-stop * width // PER_BYTE)]
        return unpack(part, (stop - start) * width).view(-1, width)

    def cached(self) -> Int8[Tensor, "n d"]:
        """All codes, unpacked once."""
        if self.codes is None:
            self.codes = self.rows(0, self.shape[0])
        return self.codes

    @property
    def weight(self) -> Float[Tensor, "n d"]:
        """The quantised weight in full, for what asks for its shape, dtype or device."""
        return self.rows(0, self.shape[0]) * self.scale

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self.codes = None


class PackedTernaryLinear(Packed):
    """What a trained ternary linear layer computes in evaluation, from the packed weights.

    Args:
        source: the trained layer: `Packable`, with `role`, `inputs` and `bias`.
        cache: unpack once to a byte per weight, for decoding token by token; else, in every call, a
            block of rows at a time.
    """

    bias: Tensor | None

    def __init__(self, source: Any, *, cache: bool = False) -> None:
        super().__init__(source, cache=cache)
        self.role: Role = source.role
        self.inputs = copy.deepcopy(source.inputs).eval()
        bias = source.bias
        self.register_buffer("bias", None if bias is None else bias.detach().clone())

    def train(self, mode: bool = True) -> PackedTernaryLinear:
        """Stays in evaluation: nothing here is trained."""
        return super().train(False)

    def forward(self, x: Float[Tensor, "*b i"]) -> Float[Tensor, "*b o"]:
        x, height = self.inputs(x), self.shape[0]
        if self.cache:
            y = F.linear(x, self.cached().to(x.dtype))
        else:
            blocks = (self.rows(at, min(at + BLOCK, height)) for at in range(0, height, BLOCK))
            y = torch.cat([F.linear(x, block.to(x.dtype)) for block in blocks], -1)
        y = y * self.scale.flatten().to(y.dtype)
        return y if self.bias is None else y + self.bias


class PackedTernaryEmbedding(Packed):
    """Looks up single rows in the packed table; `table()` unpacks it for a tied head."""

    component = "embedding"

    def forward(self, ids: Int[Tensor, "*b"]) -> Float[Tensor, "*b d"]:
        places = ids[..., None] * self.shape[1] + torch.arange(self.shape[1], device=ids.device)
        scale = self.scale.flatten()[ids][..., None] if self.scale.ndim else self.scale
        return unpack_at(self.trits, places) * scale

    def table(self) -> Float[Tensor, "entries d"]:
        """The quantised table."""
        return self.cached() * self.scale if self.cache else self.weight
