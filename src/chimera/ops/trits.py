"""Pack five ternary codes into a byte (SPEC Q7, E8; TITAN 5.4).

    byte = Σ_{i<5} (cᵢ + 1)·3ⁱ,   3⁵ = 243 ≤ 256

A ternary weight has log2 3 ≈ 1.585 bits of information (TITAN writes ⌈log2 3⌉, which is 2); this
format uses 8/5 = 1.6 bits. Codes are packed as one flat row, so that only the last byte has unused
places.
"""

from __future__ import annotations

import torch
from einops import rearrange
from jaxtyping import Int, Int8, UInt8
from torch import Tensor

PER_BYTE = 5


def _powers(device: torch.device) -> Tensor:
    return 3 ** torch.arange(PER_BYTE, device=device)


def pack(codes: Int8[Tensor, "*shape"]) -> UInt8[Tensor, " bytes"]:
    """Pack codes −1, 0, 1 of any shape, in memory order."""
    flat = codes.flatten().to(torch.uint8) + 1  # −1 converts to 255, and 255 + 1 wraps to 0
    padded = torch.cat([flat, flat.new_zeros(-len(flat) % PER_BYTE)])
    five = rearrange(padded, "(n five) -> n five", five=PER_BYTE)
    return (five * _powers(codes.device).to(torch.uint8)).sum(1).to(torch.uint8)


def unpack(packed: UInt8[Tensor, " bytes"], count: int) -> Int8[Tensor, " count"]:
    """Unpack the first `count` codes, with one table look-up per byte."""
    every = torch.arange(3**PER_BYTE, device=packed.device)[:, None]
    table = (every // _powers(packed.device) % 3 - 1).to(torch.int8)
    return table.index_select(0, packed.int()).flatten()[:count]


def unpack_at(packed: UInt8[Tensor, " bytes"], index: Int[Tensor, "*n"]) -> Int8[Tensor, "*n"]:
    """Unpack only the codes at the indices `index`."""
    byte = packed[index // PER_BYTE].long()
    return (byte // 3 ** (index % PER_BYTE) % 3 - 1).to(torch.int8)
