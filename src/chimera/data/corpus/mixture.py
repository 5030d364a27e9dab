"""Several texts, mixed in training by weights or numbers of passes.

Each source is divided and packed on its own, so its tokens stay in the cache when weights change.
The tokenizer learns from the train text of all sources, each by its size. Validation and test are
on all sources, one after the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from chimera.data.corpus.base import PackedText
from chimera.data.corpus.text import Text
from chimera.data.source.cache import fingerprint_of
from chimera.errors import UserError, nearest
from chimera.types import PositiveInt

#: Keys of a source that are those of `data=text`, and what they take.
_OF_TEXT: dict[str, type] = {
    **dict.fromkeys(("path", "valid_path", "test_path", "field", "config"), str),
    "stream": bool,
    "max_bytes": int,
}
_WORDS = {bool: "true or false", int: "a number of bytes", str: "text"}
_EXAMPLE = "data.sources=[{path: a.txt, weight: 0.7}, {path: b.txt, weight: 0.3}]"


@dataclass(frozen=True)
class Recipe:
    """How sources are mixed.

    Args:
        weights: share of the blocks of each source; None takes every source by its size and its
            epochs.
        epochs: most passes over each source in an epoch of the mixture. With weights, the epoch is
            as long as they allow.
    """

    weights: tuple[float, ...] | None
    epochs: tuple[float, ...]

    def counts(self, sizes: Sequence[int]) -> list[int]:
        """Blocks of each source in an epoch, at least one.

        Args:
            sizes: blocks of each source.
        """
        most = [size * epochs for size, epochs in zip(sizes, self.epochs, strict=True)]
        if self.weights is not None:
            shares = [weight / sum(self.weights) for weight in self.weights]
            length = min(each / share for each, share in zip(most, shares, strict=True))
            most = [share * length for share in shares]
        return [max(1, round(each)) for each in most]


@dataclass(frozen=True, kw_only=True)
class Mixture(PackedText):
    """Several texts.

    Args:
        sources: each has the keys path, valid_path, test_path, field, config, stream and max_bytes
            of `data=text`, and `weight` or `epochs` or both. Weights are shares of the blocks; all
            sources have one or none. Without weights a source counts by its size times its
            `epochs` (1). With weights an epoch of the mixture is so long that no source is passed
            more than `epochs` times.
        max_bytes: of all sources together; each takes an equal part, or less by its own bound.
        deduplicate, processes: as of `data=text`; equal documents of different sources stay.
    """

    sources: Sequence[Mapping[str, Any]] = ()  # type: ignore[assignment]  # no method here
    deduplicate: bool = False
    processes: PositiveInt | None = None

    def check(self) -> None:
        """See `Data.check`."""
        if not self.sources:
            raise UserError(f"data=mixture needs data.sources, such as '{_EXAMPLE}'")
        for number, source in enumerate(self.sources):
            self._check_source(f"data.sources[{number}]", source)
        if len({"weight" in source for source in self.sources}) > 1:
            raise UserError("data.sources: give every source a weight, or none of them")
        for corpus in self.corpora.values():
            corpus.check()

    def fingerprint(self) -> str:
        """Hash of the sources; how they are mixed does not change their tokens."""
        corpora = self.corpora.values()
        return fingerprint_of("mixture", 1, [corpus.fingerprint() for corpus in corpora])

    @cached_property
    def corpora(self) -> dict[str, Text]:
        """The sources by their names: number and path."""
        shared: dict[str, Any] = {
            "cache_dir": self.cache_dir,
            "processes": self.processes,
            "deduplicate": self.deduplicate,
        }
        corpora = {}
        for number, source in enumerate(self.sources):
            given = {key: source[key] for key in _OF_TEXT if key in source}
            bounds = [
                given.get("max_bytes"),
                self.max_bytes and self.max_bytes // len(self.sources),
            ]
            given["max_bytes"] = min((bound for bound in bounds if bound), default=None)
            corpora[f"{number} ({source['path']})"] = Text(**given, **shared)
        return corpora

    @property
    def recipe(self) -> Recipe:
        """How the sources are mixed."""
        weights = tuple(float(s["weight"]) for s in self.sources if "weight" in s)
        return Recipe(weights or None, tuple(float(s.get("epochs", 1)) for s in self.sources))

    def _check_source(self, where: str, source: Mapping[str, Any]) -> None:
        allowed = (*_OF_TEXT, "weight", "epochs")
        for key, value in source.items():
            if key not in allowed:
                raise UserError(
                    f"{where}.{key} is no key of a source{nearest(key, allowed)}"
                    f" (it has {', '.join(allowed)})"
                )
            kind = _OF_TEXT.get(key)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            right = isinstance(value, kind | None) if kind else number and 0 < value < float("inf")
            if not right:
                takes = _WORDS[kind] if kind else "a number above 0"
                raise UserError(f"{where}.{key}={value} is not allowed; it takes {takes}")
        if "path" not in source:
            raise UserError(f"{where} needs path=<a file, folder, glob or owner/name>")
