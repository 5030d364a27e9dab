"""Random streams that are functions of (purpose, seed, epoch, index); the order of an epoch.

The streams are counter-based (Philox 4×64, doi 10.1145/2063384.2063405): the key is (seed, epoch),
the upper half of the counter is (purpose, index), so streams do not overlap. A sample does not
depend on the process that draws it or on earlier draws: any worker or resumed run draws the same
numbers.

The order of the samples in an epoch is a function of (seed, epoch). Up to `LARGEST_ARRAY` samples
it is a shuffled array. Above, it is a permutation that is computed for the requested positions
alone, so that memory does not grow with the data: a Feistel network on the least even number of
bits that holds all positions (Luby and Rackoff, doi 10.1137/0217022). A result that is no position
is permuted again until it is one ("cycle walking": Black and Rogaway, doi 10.1007/3-540-45760-7_9).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum

import numpy as np
import numpy.typing as npt

#: Most samples whose order is an array: 32 MiB.
LARGEST_ARRAY = 1 << 22
_ROUNDS = 8

Positions = npt.NDArray[np.int64]
#: Maps positions [n] in the epoch to numbers of samples [n].
Order = Callable[[Positions], Positions]


class Purpose(IntEnum):
    """Use of a stream; different uses share no random numbers."""

    ORDER = 0
    MASK = 1


def stream(purpose: Purpose, seed: int, epoch: int, index: int = 0) -> np.random.Generator:
    """Make the random generator of these four numbers, each at least 0."""
    key = np.array([seed, epoch], dtype=np.uint64)
    counter = np.array([0, 0, purpose, index], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))


def order_of(samples: int, seed: int, epoch: int) -> Order:
    """Make the order of an epoch of `samples` samples."""
    if samples > LARGEST_ARRAY:
        return Permutation(samples, seed, epoch)
    shuffled: Positions = stream(Purpose.ORDER, seed, epoch).permutation(np.arange(samples))
    return shuffled.__getitem__


class Permutation:
    """Pseudo-random permutation of 0 … size − 1 without an array of that length.

    Args:
        size: number of positions, below 2⁶².
        seed, epoch, index: choose the permutation.
    """

    def __init__(self, size: int, seed: int, epoch: int, index: int = 0) -> None:
        self.size = size
        self.half = np.uint64(max(1, -(-(size - 1).bit_length() // 2)))  # bits of each half
        self.mask = np.uint64((1 << int(self.half)) - 1)
        numbers = stream(Purpose.ORDER, seed, epoch, index)
        self.keys = numbers.integers(0, 1 << 64, _ROUNDS, dtype=np.uint64)

    def __call__(self, positions: Positions) -> Positions:
        """Numbers [n] of the samples at positions [n]."""
        values = self._network(np.asarray(positions, dtype=np.uint64))
        while (outside := values >= self.size).any():
            values[outside] = self._network(values[outside])
        return values.astype(np.int64)

    def _network(self, values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        left = values >> self.half
        right = values & self.mask
        for key in self.keys:
            left, right = right, left ^ (_mixed(right + key) & self.mask)
        return (left << self.half) | right


def _mixed(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finaliser of SplitMix64 (doi 10.1145/2714064.2660195)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
