"""Pack four ternary codes into a byte, in the order that the kernels of `packed` read (SPEC Q7).

A row is blocks of 128 codes in 32 bytes: byte j of a block has the codes c + 1 of its places j,
j + 32, j + 64 and j + 96, the first in the lowest bits. So a vector of bytes gives four vectors of
codes by shifts. The last block is filled with zeros. Base 3 (`trits`) is a fifth smaller and is the
format of files; unpacking it takes a multiplication per code.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Int8, UInt8
from torch import Tensor

BLOCK = 128
LANES = 4
SHIFTS = (0, 2, 4, 6)


def pack(codes: Int8[Tensor, "n k"]) -> UInt8[Tensor, "n bytes"]:
    """Pack codes −1, 0, 1 by rows."""
    u = F.pad(codes + 1, (0, -codes.shape[1] % BLOCK), value=1).to(torch.uint8)
    parts = u.view(len(u), -1, LANES, BLOCK // LANES)
    packed = parts[:, :, 0].clone()
    for part, shift in enumerate(SHIFTS[1:], 1):
        packed |= parts[:, :, part] << shift
    return packed.flatten(1)


def unpack(packed: UInt8[Tensor, "n bytes"], k: int) -> Int8[Tensor, "n k"]:
    """Unpack rows of k codes."""
    blocks = packed.view(len(packed), -1, 1, BLOCK // LANES)
    parts = torch.cat([(blocks >> shift) & 3 for shift in SHIFTS], 2)
    return parts.flatten(1)[:, :k].to(torch.int8) - 1
