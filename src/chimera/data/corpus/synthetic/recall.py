"""Recall within a sequence: MQAR, fuzzy recall, induction. Does not import torch."""

# No `from __future__ import annotations`, as in `chimera.data.corpus.base`.

from dataclasses import dataclass, field

import numpy as np

from chimera.data.corpus.synthetic.base import (
    BLANK,
    UNASKED,
    Longer,
    Sequences,
    Symbols,
    Synthetic,
    asked_after,
    choose,
)
from chimera.errors import UserError
from chimera.types import PositiveInt


@dataclass(frozen=True, kw_only=True)
class Mqar(Synthetic):
    """Multi-query associative recall at several numbers of pairs (Zoology, arXiv 2312.04927).

    Blanks, then p pairs of a key and a value, then queries, each one of the keys followed by its
    value, which is the answer at the key. p is drawn for each sequence; keys and values of a
    sequence differ. Half of the symbols are keys. The accuracy at each p is the capacity curve.

    Args:
        pairs: numbers of pairs.
        queries: queries of a sequence.
    """

    batch_size: PositiveInt = 16
    held_out: PositiveInt = 256
    vocabulary: PositiveInt = 65
    pairs: list[PositiveInt] = field(default_factory=lambda: [4, 8, 16])
    queries: PositiveInt = 16

    @property
    def groups(self) -> tuple[str, ...]:
        """See `Synthetic.groups`."""
        return tuple(f"{count}_pairs" for count in self.pairs)

    @property
    def chance(self) -> float:
        """One of the values of the sequence."""
        return float(np.mean(1 / np.array(self.pairs)))

    def need(self) -> int:
        """See `Synthetic.need`."""
        return 2 * max(self.pairs) + 1

    def shortest(self) -> int:
        """See `Synthetic.shortest`."""
        return 2 * (max(self.pairs) + self.queries)

    def draw(self, random: np.random.Generator, count: int, length: int) -> Sequences:
        """See `Synthetic.draw`."""
        most = max(self.pairs)
        half = (self.vocabulary - 1) // 2
        keys = 1 + choose(random, count, half, most)
        values = 1 + half + choose(random, count, half, most)
        group = random.integers(len(self.pairs), size=count)
        pairs = np.array(self.pairs)[group][:, None]
        asked = (random.random((count, self.queries)) * pairs).astype(np.int64)
        ids: Symbols = np.full((count, length), BLANK, dtype=np.int64)
        before = length - 2 * self.queries
        # Pair j of the last p begins at before − 2 (p − j); the others stay blank.
        place = np.arange(2 * most)
        listed = np.stack([keys, values], -1).reshape(count, -1)
        start = before - 2 * pairs
        row, column = np.nonzero(place < 2 * pairs)
        ids[row, (start + place)[row, column]] = listed[row, column]
        ids[:, before::2] = np.take_along_axis(keys, asked, 1)
        ids[:, before + 1 :: 2] = np.take_along_axis(values, asked, 1)
        targets = np.full_like(ids, UNASKED)
        targets[:, before::2] = ids[:, before + 1 :: 2]
        return Sequences(ids, targets, np.broadcast_to(group[:, None], ids.shape).copy())


@dataclass(frozen=True, kw_only=True)
class FuzzyRecall(Synthetic):
    """Recall of values of one to three symbols by keys of one to three symbols (MAD, 2403.17844).

    A sequence is a row of pairs key value, drawn anew from a few pairs. Each symbol of the value of
    a key that came before is an answer, asked for by the symbol before it. Keys and values have
    symbols of their own, so where a key ends is to be seen; keys of a sequence differ.

    Args:
        longest: most symbols of a key, and of a value.
        pairs: different pairs of a sequence.
    """

    batch_size: PositiveInt = 16
    held_out: PositiveInt = 256
    seq_len: PositiveInt = 96
    test_len: PositiveInt = 96
    vocabulary: PositiveInt = 33
    longest: PositiveInt = 3
    pairs: PositiveInt = 6

    @property
    def chance(self) -> float:
        """One of the symbols of values."""
        return 1 / self._half

    def need(self) -> int:
        """See `Synthetic.need`: keys of a symbol have to differ most of the time."""
        return 2 * self.pairs + 1

    def shortest(self) -> int:
        """See `Synthetic.shortest`."""
        return 2 * self.longest * (self.pairs + 1)

    @property
    def _half(self) -> int:
        return (self.vocabulary - 1) // 2

    def draw(self, random: np.random.Generator, count: int, length: int) -> Sequences:
        """See `Synthetic.draw`."""
        keys = self._keys(random, count)
        values = self._motifs(random, count)
        values = np.where(values > BLANK, values + self._half, BLANK)
        pairs = np.concatenate([keys, values], -1)  # [n pairs 2·longest], blank where unused
        chosen = random.integers(self.pairs, size=(count, length // 2 + 1))
        seen = np.cumsum(chosen[..., None] == np.arange(self.pairs), axis=1)
        again = np.take_along_axis(seen, chosen[..., None], 2) > 1  # [n draws 1]
        symbols = np.take_along_axis(pairs, chosen[..., None], 1)
        answers = (np.arange(2 * self.longest) >= self.longest) & again
        flat = symbols.reshape(count, -1)
        asked = answers.reshape(count, -1)
        # Move all blanks behind the symbols.
        order = np.argsort(flat == BLANK, axis=1, kind="stable")[:, : length + 1]
        rows = np.arange(count)[:, None]
        return asked_after(flat[rows, order], asked[rows, order])

    def _motifs(self, random: np.random.Generator, count: int) -> Symbols:
        """[n pairs longest] symbols, blank behind the end of a motif."""
        shape = (count, self.pairs, self.longest)
        lengths = random.integers(1, self.longest + 1, size=shape[:2])
        symbols = random.integers(1, self._half + 1, size=shape)
        return np.where(np.arange(self.longest) < lengths[..., None], symbols, BLANK)

    def _keys(self, random: np.random.Generator, count: int) -> Symbols:
        """Motifs that differ within a sequence: those that occur twice are drawn again."""
        motifs = self._motifs(random, count)
        base = (self._half + 1) ** np.arange(self.longest)
        while True:
            codes = (motifs * base).sum(-1)
            same = codes[:, :, None] == codes[:, None]
            twice = np.tril(same, -1).any(2)
            if not twice.any():
                return motifs
            motifs = np.where(twice[..., None], self._motifs(random, count), motifs)


@dataclass(frozen=True, kw_only=True)
class Induction(Longer):
    """What followed this symbol before, among noise (arXiv 2209.11895; lengths of 2312.00752).

    A few triggers, each with a successor of its own, are first met in the first quarter of the
    trained length and met again at random places: the answer at a trigger that was met before is
    its successor. All other symbols are noise, from which successors are taken too. Test sequences
    are longer than trained ones.

    Args:
        triggers: number of triggers.
        again: times that a trigger is met again, on average, in each trained length.
        longer: multiples of the trained length whose accuracy is told; the first is not judged.
    """

    batch_size: PositiveInt = 16
    held_out: PositiveInt = 32
    test_len: PositiveInt = 1024
    vocabulary: PositiveInt = 33
    triggers: PositiveInt = 4
    again: PositiveInt = 2
    longer: list[PositiveInt] = field(default_factory=lambda: [1, 2, 4, 8, 16])

    @property
    def judged(self) -> tuple[str, ...]:
        """See `Synthetic.judged`: those beyond the trained length."""
        return self.groups[1:] or self.groups

    @property
    def chance(self) -> float:
        """One of the successors of the sequence."""
        return 1 / self.triggers

    def need(self) -> int:
        """See `Synthetic.need`."""
        return self.triggers * 2 + 1

    def shortest(self) -> int:
        """See `Synthetic.shortest`."""
        return 16 * self.triggers

    def check(self) -> None:
        """See `Synthetic.check`."""
        super().check()
        slots = (self.seq_len - self._first) // 2
        if self.again * self.triggers > slots:
            raise UserError(
                f"data.again={self.again} with data.triggers={self.triggers} does not fit"
                f" data.seq_len={self.seq_len}; give a lower one"
            )

    @property
    def _first(self) -> int:
        """Symbols within which each trigger is met once."""
        return max(2 * self.triggers, self.seq_len // 4)

    def draw(self, random: np.random.Generator, count: int, length: int) -> Sequences:
        """See `Synthetic.draw`."""
        noise = self.vocabulary - 1 - self.triggers
        ids = 1 + self.triggers + random.integers(noise, size=(count, length + 1))
        successors = 1 + self.triggers + choose(random, count, noise, self.triggers)
        slots, first = (length + 1) // 2, self._first // 2  # a slot is a trigger and its successor
        share = self.again * self.triggers * 2 / (self.seq_len - self._first)
        trigger = np.where(
            random.random((count, slots)) < share,
            random.integers(self.triggers, size=(count, slots)),
            -1,
        )
        trigger[:, :first] = -1
        place = choose(random, count, first, self.triggers)
        np.put_along_axis(trigger, place, np.arange(self.triggers)[None], 1)
        row, slot = np.nonzero(trigger >= 0)
        of = trigger[row, slot]
        ids[row, 2 * slot] = 1 + of
        ids[row, 2 * slot + 1] = successors[row, of]
        asked = np.zeros_like(ids, dtype=bool)
        asked[row, 2 * slot + 1] = slot >= first
        return asked_after(ids, asked, self.stretches(ids.shape))
