"""Products with ternary weights that stay packed, on a GPU: a kernel in Triton (SPEC Q7).

    Y = (A·Cᵀ) ⊙ step ⊙ scale + b,   A [m k] int8 codes of activations, C [n bytes] as in `two_bits`

A tile of bytes is loaded once and gives four tiles of codes in registers. Byte j of a block holds
the places j, j + 32, j + 64 and j + 96, so the activations that belong to one shift are runs of 32
neighbours. Code + 1 is shifted into the two highest bits of an int8; with the lower of the two
inverted, the int8 is −64·code. No step of it carries from byte to byte, so one instruction does
four bytes; to subtract 1 from each would take twice as many instructions.

    code  −1    0    1     bits  00   01   10     inverted  01   00   11     int8  64    0  −64

Each tile is multiplied by an int8 dot with int32 sums. They are exact: products are at most 2¹³,
and sums are below 2³¹ to a width of 2¹⁸ (`packed.WIDEST`). Factors in bf16 or fp16 would be exact
too, but their float32 sums only to 2²⁴, and tensor cores keep fewer bits than float32.

Steps and scales are applied to the sums in float32, in the order of torch's own path and without
fused multiply-adds, so both paths give the same bits. More than 64 tokens are multiplied by torch's
int8 product, with codes that each call unpacks.

Importing this module imports Triton. `kernels.gpu` decides whether it serves.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from jaxtyping import Float, Int8, Int32, UInt8
from torch import Tensor

from chimera.ops.two_bits import pack


@triton.jit(do_not_specialize=["m"])
def _kernel(  # type: ignore[no-untyped-def]
    a, packed, step, scale, bias, out, m, n, k, width, PER_ROW: tl.constexpr, M: tl.constexpr,
    N: tl.constexpr, PARTS: tl.constexpr, BYTES: tl.constexpr,
):  # fmt: skip
    """One tile [M N] of the result, over all k; with no step, the sums themselves."""
    tokens = tl.program_id(0) * M + tl.arange(0, M)
    rows = tl.program_id(1) * N + tl.arange(0, N)
    is_token, is_row = tokens < m, rows < n
    part = tl.arange(0, PARTS)[:, None] * BYTES + tl.arange(0, BYTES)[None, :]
    a += tokens.to(tl.int64)[None, :, None] * k
    packed += rows.to(tl.int64)[None, None, :] * width
    sums = tl.full((PARTS, M, N), 0, tl.int32)
    for start in range(0, width, PARTS * BYTES):
        byte = start + part
        known = (byte < width)[:, :, None] & is_row[None, None, :]
        quads = tl.load(packed + byte[:, :, None], known, other=0)
        first = byte // 32 * 128 + byte % 32
        for lane in tl.static_range(4):
            place = (first + 32 * lane)[:, None, :]
            # Zeros beyond the width, whatever the code there.
            codes = tl.load(a + place, is_token[None, :, None] & (place < k), other=0)
            weights = ((quads << 6 - 2 * lane & 0xC0) ^ 0x40).to(tl.int8, bitcast=True)
            sums = tl.dot(codes, weights, sums, out_dtype=tl.int32)
    total = -tl.sum(sums, 0) >> 6
    place = tokens.to(tl.int64)[:, None] * n + rows[None, :]
    mask = is_token[:, None] & is_row[None, :]
    if step is None:
        tl.store(out + place, total, mask)
    else:
        y = total.to(tl.float32) * tl.load(step + tokens, is_token, other=0)[:, None]
        if PER_ROW:
            y *= tl.load(scale + rows, is_row, other=0).to(tl.float32)[None, :]
        else:
            y *= tl.load(scale).to(tl.float32)
        if bias is not None:
            y += tl.load(bias + rows, is_row, other=0).to(tl.float32)[None, :]
        tl.store(out + place, y.to(out.dtype.element_ty), mask)


@triton.jit
def _unpacked(packed, codes, k, width, BYTES: tl.constexpr):  # type: ignore[no-untyped-def]
    """Codes of some bytes of a row, one in a byte."""
    row = tl.program_id(0).to(tl.int64)
    byte = tl.program_id(1) * BYTES + tl.arange(0, BYTES)
    quads = tl.load(packed + row * width + byte, byte < width, other=0)
    first = byte // 32 * 128 + byte % 32
    for lane in tl.static_range(4):
        place = first + 32 * lane
        code = (quads >> 2 * lane & 3).to(tl.int8) - 1
        tl.store(codes + row * k + place, code, place < k)


class Tile(NamedTuple):
    """Tile of a program: tokens, rows, parts of a row at a time, their bytes; Triton's options."""

    M: int
    N: int
    PARTS: int
    BYTES: int
    num_warps: int
    num_stages: int


#: Tiles by the largest number of tokens that they are for. Rows alone give too few programs to keep
#: a GPU busy: the warps of one share the width. None needs over 99 KB of shared memory, which the
#: smaller GPUs of a generation have.
TILES = {16: Tile(16, 16, 8, 32, 8, 3), 64: Tile(64, 32, 2, 32, 8, 3)}
#: More tokens than this are multiplied by unpacked codes: a tile of them would unpack each again.
FEW = max(TILES)
#: Bytes of an aligned load: rows of activations that are no multiple of it are filled with zeros,
#: because they could only be read byte by byte.
ALIGNED = 16
#: Bytes that a program unpacks.
UNPACKED = 512


def unpacked(packed: UInt8[Tensor, "n bytes"], k: int) -> Int8[Tensor, "n k"]:
    """Codes of k channels, one in a byte."""
    n, width = packed.shape
    codes = torch.empty(n, k, dtype=torch.int8, device=packed.device)
    with torch.cuda.device_of(packed):
        programs = n, triton.cdiv(width, UNPACKED)
        _unpacked[programs](packed, codes, k, width, BYTES=UNPACKED)
    return codes


def product(a: Int8[Tensor, "m k"], packed: UInt8[Tensor, "n bytes"]) -> Int32[Tensor, "m n"]:
    """A·Cᵀ, exact."""
    out = torch.empty(len(a), len(packed), dtype=torch.int32, device=a.device)
    return _launched(a, packed, None, None, None, out)


def scaled(
    a: Int8[Tensor, "m k"],
    step: Float[Tensor, "m 1"],
    packed: UInt8[Tensor, "n bytes"],
    scale: Tensor,
    bias: Float[Tensor, " n"] | None,
    dtype: torch.dtype,
) -> Float[Tensor, "m n"]:
    """(A·Cᵀ) ⊙ step ⊙ scale + b, computed in float32 and rounded once.

    Args:
        a: activation codes.
        step: of the activation grid, float32.
        packed: codes of the weight.
        scale: of the weight, [] or [n 1]; float32 or half precision, as the bias.
        bias: added at the end.
        dtype: of the result; float32 or half precision.
    """
    out = torch.empty(len(a), len(packed), dtype=dtype, device=a.device)
    bias = None if bias is None else bias.contiguous()
    return _launched(a, packed, step.contiguous(), scale.contiguous(), bias, out)


def fault(device: torch.device) -> str | None:
    """Why the kernel does not serve on a device, in one line; None if it does.

    Compiles every tile and compares its sums with exact ones, in whole tiles and in parts.
    """
    generator = torch.Generator().manual_seed(0)
    for m, n, k in ((3, 35, 300), (17, 35, 1129)):
        a = torch.randint(-128, 128, (m, k), generator=generator)
        codes = torch.randint(-1, 2, (n, k), generator=generator)
        packed, one = pack(codes.to(torch.int8)).to(device), torch.ones(m, 1, device=device)
        y = scaled(a.to(device, torch.int8), one, packed, one[0, 0], None, torch.float32)
        same = torch.equal(unpacked(packed, k).cpu(), codes.to(torch.int8))
        if not same or not torch.equal(y.cpu().long(), a @ codes.T):
            return f"wrong sums of {m} x {k} x {n} codes"
    return None


def _launched(
    a: Tensor, packed: Tensor, step: Tensor | None, scale: Tensor | None, bias: Tensor | None,
    out: Tensor,
) -> Tensor:  # fmt: skip
    a = F.pad(a, (0, -a.shape[1] % ALIGNED)).contiguous()
    (m, k), (n, width) = a.shape, packed.shape
    if not m * n:  # an expert without tokens
        return out
    chosen = next((each for most, each in TILES.items() if m <= most), TILES[FEW])
    programs = -(-m // chosen.M), -(-n // chosen.N)
    options: dict[str, Any] = chosen._asdict()
    per_row = scale is not None and scale.ndim > 0
    with torch.cuda.device_of(a):
        _kernel[programs](
            a, packed, step, scale, bias, out, m, n, k, width, PER_ROW=per_row,
            enable_fp_fusion=False, **options,
        )  # fmt: skip
    return out
