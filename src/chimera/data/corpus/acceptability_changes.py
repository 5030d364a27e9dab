"""Make a sentence unacceptable by one seeded change.

The changes are: wrong agreement (is → are); a function word dropped, doubled, moved, or exchanged
for one of another class; two adjacent words swapped. Most examples in CoLA violate such rules.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np

Change = Callable[[list[str], np.random.Generator], list[str] | None]

_AGREEMENT = {
    "is": "are",
    "are": "is",
    "was": "were",
    "were": "was",
    "has": "have",
    "have": "has",
    "does": "do",
    "this": "these",
    "these": "this",
    "that": "those",
    "those": "that",
    "can": "cans",
    "must": "musts",
    "will": "wills",
    "be": "is",
    "been": "was",
}
_DETERMINERS = ("the", "a", "an", "this", "these", "each", "all")
_PREPOSITIONS = ("of", "to", "in", "for", "by", "with", "from", "on", "at", "into")
_NEEDED = (*_DETERMINERS[:3], *_PREPOSITIONS, "is", "are", "be", "and", "that", "not", "it")


def corrupt(sentence: str, seed: str) -> str | None:
    """Apply one change to a sentence; None if no change applies.

    Args:
        sentence: words separated by blanks, with a full stop at the end.
        seed: of the kind of change and its position.
    """
    digest = hashlib.sha256(seed.encode()).digest()
    rng = np.random.default_rng(int.from_bytes(digest[:8], "little"))
    words = sentence.removesuffix(".").split(" ")
    words[0] = words[0][0].lower() + words[0][1:]
    for number in rng.permutation(len(_CHANGES)):
        changed = _CHANGES[number](list(words), rng)
        if changed is not None and changed != words:
            text = " ".join(changed)
            return f"{text[0].upper()}{text[1:]}."
    return None


def _agree(words: list[str], rng: np.random.Generator) -> list[str] | None:
    at = _choose([i for i, word in enumerate(words) if word in _AGREEMENT], rng)
    if at is None:
        return None
    words[at] = _AGREEMENT[words[at]]
    return words


def _drop(words: list[str], rng: np.random.Generator) -> list[str] | None:
    at = _choose([i for i, word in enumerate(words) if word in _NEEDED], rng)
    return None if at is None else words[:at] + words[at + 1 :]


def _double(words: list[str], rng: np.random.Generator) -> list[str] | None:
    at = _choose([i for i, word in enumerate(words) if word in _NEEDED], rng)
    return None if at is None else words[: at + 1] + words[at:]


def _exchange(words: list[str], rng: np.random.Generator) -> list[str] | None:
    """Replace a determiner by a preposition, or a preposition by a determiner."""
    at = _choose([i for i, w in enumerate(words) if w in (*_DETERMINERS, *_PREPOSITIONS)], rng)
    if at is None:
        return None
    substitutes = _PREPOSITIONS if words[at] in _DETERMINERS else _DETERMINERS
    words[at] = str(rng.choice(substitutes))
    return words


def _swap(words: list[str], rng: np.random.Generator) -> list[str] | None:
    """Swap a function word with the next word."""
    at = _choose([i for i, word in enumerate(words[:-1]) if word in _NEEDED], rng)
    if at is None:
        return None
    words[at], words[at + 1] = words[at + 1], words[at]
    return words


def _move(words: list[str], rng: np.random.Generator) -> list[str] | None:
    """Move a function word by three or more positions."""
    at = _choose([i for i, word in enumerate(words) if word in _NEEDED], rng)
    if at is None:
        return None
    word = words.pop(at)
    to = _choose([i for i in range(len(words) + 1) if abs(i - at) >= 3], rng)
    return None if to is None else [*words[:to], word, *words[to:]]


def _choose(positions: list[int], rng: np.random.Generator) -> int | None:
    return int(rng.choice(positions)) if positions else None


_CHANGES: tuple[Change, ...] = (_agree, _drop, _double, _exchange, _swap, _move)
