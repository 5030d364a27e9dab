"""Random streams that are functions of (purpose, seed, epoch, index).

They are counter-based (Philox 4×64, doi 10.1145/2063384.2063405): the key is (seed, epoch), the
upper half of the counter is (purpose, index), so streams do not overlap. A sample does not depend
on the process that draws it or on earlier draws: any worker or resumed run draws the same numbers.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np


class Purpose(IntEnum):
    """Use of a stream; different uses share no random numbers."""

    ORDER = 0
    MASK = 1


def stream(purpose: Purpose, seed: int, epoch: int, index: int = 0) -> np.random.Generator:
    """Make the random generator of these four numbers, each at least 0."""
    key = np.array([seed, epoch], dtype=np.uint64)
    counter = np.array([0, 0, purpose, index], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))
