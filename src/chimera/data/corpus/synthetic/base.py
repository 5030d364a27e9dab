"""Base of the synthetic data sets: sequences of symbols of which some positions ask for an answer.

Sequence i of a split is a function of (data_seed, split, i), whatever the number of sequences, and
the splits share no random numbers. Symbol 0 is the blank. Does not import torch.
"""

# No `from __future__ import annotations`, as in `chimera.data.corpus.base`.

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from chimera.data.corpus.base import Data, unfit
from chimera.data.source.cache import fingerprint_of
from chimera.data.source.splits import SHARES, Sources, Split
from chimera.errors import UserError
from chimera.types import PositiveInt, Seed

Symbols = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
#: The symbol that stands for nothing, and the target of a position that asks for nothing.
BLANK = 0
UNASKED = -1
#: Sequences that are drawn together.
BLOCK = 256
#: Keys of the random streams of a split, and of what all splits share.
STREAMS = {"train": 0, "valid": 1, "test": 2, "shared": 3}


class Sequences(NamedTuple):
    """Sequences of symbols with the answers that they ask for.

    Args:
        ids: [n t] symbols.
        targets: [n t] answer at each position, `UNASKED` where none is asked for.
        groups: [n t] number of the group of each answer, an index of `Synthetic.groups`.
        right: [n t] bit s is set where symbol s is a right answer; None if only the target is.
    """

    ids: Symbols
    targets: Symbols
    groups: Symbols
    right: Symbols | None = None

    def take(self, count: int | None) -> "Sequences":
        """The first `count` sequences; None: all."""
        right = None if self.right is None else self.right[:count]
        return Sequences(self.ids[:count], self.targets[:count], self.groups[:count], right)


@dataclass(frozen=True, kw_only=True)
class Synthetic(Data, ABC):
    """Settings of all synthetic data sets.

    Args:
        seq_len: symbols of a training sequence.
        test_len: symbols of a sequence of validation and test.
        vocabulary: number of symbols, the blank included.
        samples: training sequences of an epoch.
        held_out: sequences of validation, and of test.
        data_seed: of all sequences.
    """

    #: Whether the answers are decoded from the state at the last position alone.
    bottleneck: ClassVar[bool] = False

    batch_size: PositiveInt = 32
    seq_len: PositiveInt = 64
    test_len: PositiveInt = 64
    vocabulary: PositiveInt = 64
    samples: PositiveInt = 32_768
    held_out: PositiveInt = 512
    data_seed: Seed = 0

    @property
    def groups(self) -> tuple[str, ...]:
        """Names of the groups of answers; each has an accuracy of its own."""
        return ("all",)

    @property
    def judged(self) -> tuple[str, ...]:
        """Groups whose mean accuracy is the accuracy."""
        return self.groups

    @property
    @abstractmethod
    def chance(self) -> float:
        """Expected accuracy of a guess that knows which symbols can be answers, and no more."""

    @abstractmethod
    def draw(self, random: np.random.Generator, count: int, length: int) -> Sequences:
        """Draw sequences.

        Args:
            random: source of all their random numbers.
            count: number of sequences.
            length: symbols of each.
        """

    def need(self) -> int:
        """Fewest symbols of the vocabulary with which the sequences can be drawn."""
        return 2

    def shortest(self) -> int:
        """Fewest symbols of a sequence."""
        return 2

    def check(self) -> None:
        """Check that sequences can be drawn with these settings.

        Raises:
            UserError: the vocabulary is too small, or the sequences are too short.
        """
        if self.vocabulary < self.need():
            raise UserError(
                f"data.vocabulary={self.vocabulary} is too small for these sequences; give at"
                f" least {self.need()}"
            )
        for key in ("seq_len", "test_len"):
            if getattr(self, key) < self.shortest():
                raise UserError(
                    f"data.{key}={getattr(self, key)} is too short for these sequences; give at"
                    f" least {self.shortest()}"
                )

    def fingerprint(self) -> str:
        """Hash of all settings that decide the sequences."""
        free = {"batch_size": 1, "num_workers": 0, "cache_dir": "", "max_bytes": None}
        decisive = {key: value for key, value in vars(self).items() if key not in free}
        return fingerprint_of("synthetic", 1, type(self).__name__, sorted(decisive.items()))

    def sequences(self, split: Split) -> Sequences:
        """All sequences of a split."""
        train = split == "train"
        count, length = (self.samples, self.seq_len) if train else (self.held_out, self.test_len)
        blocks = [
            self.draw(self.stream(split, block), BLOCK, length)
            for block in range(-(-count // BLOCK))
        ]
        ids, targets, groups = (
            np.concatenate([block[part] for block in blocks]) for part in (0, 1, 2)
        )
        several = [block.right for block in blocks if block.right is not None]
        right = np.concatenate(several) if several else None
        return Sequences(ids, targets, groups, right).take(count)

    def stream(self, name: str, block: int = 0) -> np.random.Generator:
        """The random numbers of a block of a split, or those that all splits share (`shared`)."""
        key = np.array([self.data_seed, STREAMS[name]], dtype=np.uint64)
        counter = np.array([0, 0, 0, block], dtype=np.uint64)
        return np.random.Generator(np.random.Philox(key=key, counter=counter))

    def sources(self) -> Sources:
        """Each sequence as a text of numbers, for tasks that read text."""
        return {
            split: [[" ".join(map(str, row)) for row in self.sequences(split).ids.tolist()]]
            for split in SHARES
        }


@dataclass(frozen=True, kw_only=True)
class Longer(Synthetic):
    """Sequences of which the test ones are longer.

    The accuracy is the mean over the trained length and the stretches beyond it.

    Args:
        longer: multiples of the trained length at which a stretch ends.
    """

    longer: list[PositiveInt] = field(default_factory=lambda: [1, 2, 4, 6])

    @property
    def groups(self) -> tuple[str, ...]:
        """See `Synthetic.groups`."""
        return tuple(f"{factor}x" for factor in self.longer)

    def stretches(self, shape: tuple[int, ...]) -> Symbols:
        """Number of the stretch that each position [n t] is in.

        Positions beyond the largest multiple belong to it.
        """
        ends = np.array(self.longer) * self.seq_len
        stretch = np.searchsorted(ends, np.arange(shape[1]), side="right")
        return np.broadcast_to(np.minimum(stretch, len(ends) - 1), shape).copy()


def asked_after(ids: Symbols, answers: Flags, groups: Symbols | None = None) -> Sequences:
    """Sequences whose symbol at t + 1 is the answer that position t asks for.

    Args:
        ids: [n t + 1] symbols, with one more than the sequences have.
        answers: [n t + 1] True where a symbol is an answer.
        groups: [n t + 1] group of each answer; None for one group.
    """
    targets = np.where(answers, ids, UNASKED)[:, 1:]
    of = np.zeros_like(targets) if groups is None else groups[:, 1:]
    return Sequences(ids[:, :-1], targets, of)


def choose(random: np.random.Generator, rows: int, size: int, count: int) -> Symbols:
    """Choose `count` different numbers below `size` in each row. [rows count]"""
    return np.argsort(random.random((rows, size)), axis=1)[:, :count]


def check_synthetic(corpus: object) -> None:
    """Refuse a corpus without answers to symbols.

    Raises:
        UserError: with the choices of `data=` that have them.
    """
    if not isinstance(corpus, Synthetic):
        others = "data=mad/mqar or another data=mad/<name>"
        raise unfit("synthetic", corpus, "sequences of symbols", others)
