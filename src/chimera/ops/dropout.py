"""Dropout as a function of (seed, step, sample, position, layer, call), not of generator state.

    u_ij = 16 bits of SplitMix64(key_i + call + ⌊j/4⌋·G)           row i, channel j
    y_ij = x_ij / (1 − p̂) where u_ij ≥ p̂, else 0                    p̂ = round(2¹⁶ p)/2¹⁶

A row's key is a hash of the run's seed, the optimiser step, the sample's number in the data, the
position of the token and the layer; each call adds a constant. So a sample gets the same draws on
any rank, at any place of a batch, with any padding, in any micro-batch of a step, and when gradient
checkpointing computes a layer again. Hashing a 64-bit key plus a multiple of an odd constant is a
counter-based generator (SplitMix64, doi 10.1145/2660193.2660195).

Keys are int64 and wrap around.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from chimera.contract import Context

LEVELS = 1 << 16  # of p̂
LANES = 4  # draws of 16 bits in a hash of 64


def _signed(number: int) -> int:
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


GOLDEN = _signed(0x9E3779B97F4A7C15)
FIRST, SECOND = _signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB)
#: Odd constants, one for each thing that is counted.
STEP, POSITION, PART = (
    _signed(number) for number in (0xD1342543DE82EF95, 0xAF251AF3B0F025B5, 0xD6E8FEB86659FD93)
)


def label(name: str) -> int:
    """Constant of a place where dropout is called; its calls draw other numbers than all others."""
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def counters(seed: int, step: int, samples: Int[Tensor, " b"]) -> Int[Tensor, " b"]:
    """Number of each sample in an optimiser step, of which `sample_keys` makes its key.

    Args:
        seed: of the run.
        step: optimiser steps taken before.
        samples: numbers of the samples in the data.
    """
    return samples * GOLDEN + _mixed(seed * GOLDEN + step * STEP)


def sample_keys(numbers: Int[Tensor, " b"] | None) -> Int[Tensor, " b"] | None:
    """Keys from `counters`, None from None: a step computes them in its graph."""
    return None if numbers is None else _mix(numbers.clone())


def token_keys(samples: Int[Tensor, " b"], pos: Int[Tensor, "#b t"]) -> Int[Tensor, "b t"]:
    """Key of each token: of its sample and its position, so padding does not change it."""
    return _mix(samples[:, None] + _int64(pos, samples) * POSITION)


def fork(ctx: Context, number: int) -> Context:
    """The same inputs with other draws, for a layer or for one of several parts of it."""
    if ctx.draws is None:
        return ctx
    return replace(ctx, draws=_mix(ctx.draws + _signed((number + 1) * PART)))


def dropout(
    x: Float[Tensor, "*n d"], p: float, training: bool, keys: Int[Tensor, "*n"] | None, call: int
) -> Float[Tensor, "*n d"]:
    """Set a share p̂ of the channels of each row to zero and scale the others by 1/(1 − p̂).

    Without keys, as in a module that is called by itself, this is torch's dropout.

    Args:
        x: [… d].
        p: probability of zero, rounded to a multiple of 2⁻¹⁶.
        training: False returns x.
        keys: of the rows [… ], such as `Context.draws`.
        call: `label` of this place.
    """
    if not training or p == 0:
        return x
    if keys is None:
        return F.dropout(x, p)
    zeros = round(p * LEVELS)
    keep = draws(keys, x.shape[-1], call) >= zeros - LEVELS // 2
    return x * keep.to(x.dtype).mul_(LEVELS / (LEVELS - zeros))


def draws(keys: Int[Tensor, "*n"], width: int, call: int) -> Int[Tensor, "*n d"]:
    """Uniform 16-bit numbers for each row and channel.

    A compiled graph computes the hash again for each of its four channels: that costs less than to
    write it to memory and read it, which a view of other width takes.
    """
    if torch.compiler.is_compiling():
        channels = _int64(torch.arange(width, device=keys.device), keys)
        hashes = _mix(keys[..., None] + (channels // LANES * GOLDEN + call))
        return hashes << (LANES - 1 - channels % LANES) * 16 >> 48
    groups = _int64(torch.arange(-(-width // LANES), device=keys.device), keys)
    return _mix(keys[..., None] + (groups * GOLDEN + call)).view(torch.int16)[..., :width]


def _int64(index: Int[Tensor, "*n"], keys: Int[Tensor, "*m"]) -> Int[Tensor, "*n"]:
    """The same numbers, for a product with a 64-bit constant in a compiled graph.

    Inductor counts an `arange` in int32, and Triton refuses to multiply that by such a constant.
    Added to numbers that it loads, which it cannot know to be 0, the index is of 64 bits.
    """
    if torch.compiler.is_compiling():
        return index + (keys.flatten()[:1] & 0).to(index.device)
    return index


def _mixed(number: int) -> int:
    """`_mix` of one number, on the host."""
    x = number % (1 << 64)
    x = (x ^ x >> 30) * FIRST % (1 << 64)
    x = (x ^ x >> 27) * SECOND % (1 << 64)
    return _signed(x ^ x >> 31)


def _mix(x: Int[Tensor, "*n"]) -> Int[Tensor, "*n"]:
    """SplitMix64's finaliser, in place: x is a fresh tensor of the caller."""
    x ^= _shifted(x, 30)
    x *= FIRST
    x ^= _shifted(x, 27)
    x *= SECOND
    x ^= _shifted(x, 31)
    return x


def _shifted(x: Int[Tensor, "*n"], bits: int) -> Int[Tensor, "*n"]:
    """Logical shift to the right; torch's is arithmetic."""
    return (x >> bits).bitwise_and_((1 << (64 - bits)) - 1)
