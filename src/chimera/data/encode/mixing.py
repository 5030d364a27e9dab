"""Tokens of several sources, and how they are mixed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from chimera.data.corpus.mixture import Recipe
from chimera.data.encode.packing import JoinedIds, PackedTokens


@dataclass(frozen=True)
class MixedTokens:
    """Train tokens of several sources; `chimera.data.batch.mixing` makes blocks of them.

    Args:
        rows: of each source.
        recipe: how they are mixed.
    """

    rows: tuple[PackedTokens, ...]
    recipe: Recipe

    @cached_property
    def ids(self) -> JoinedIds:
        """Ids of all sources, each once, one source after the other."""
        return JoinedIds([row.ids for row in self.rows])

    def __len__(self) -> int:
        return sum(map(len, self.rows))

    def __getstate__(self) -> dict[str, object]:
        return {"rows": self.rows, "recipe": self.recipe}  # worker processes map the files
