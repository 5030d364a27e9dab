"""Random numbers as a function of (purpose, seed, epoch, index) and nothing else.

Counter-based (Philox 4×64, doi 10.1145/2063384.2063405): the key is (seed, epoch), the upper half
of the counter (purpose, index), so that streams never meet. What a sample looks like depends
neither on who draws it nor on what was drawn before: any worker or resumed run draws the same.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np


class Purpose(IntEnum):
    """What a stream is for; two purposes share no numbers."""

    ORDER = 0
    MASK = 1


def stream(purpose: Purpose, seed: int, epoch: int, index: int = 0) -> np.random.Generator:
    """The generator of these four numbers, each from 0."""
    key = np.array([seed, epoch], dtype=np.uint64)
    counter = np.array([0, 0, purpose, index], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))
