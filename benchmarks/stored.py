"""The repo's records, for the blocks of pages that are written from them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from chimera.paths import EXPERIMENTS
from chimera.rundir.records import Record, folders
from chimera.rundir.records import records as read

#: A record's configuration and run.json.
Pair = tuple[dict[str, Any], dict[str, Any]]


def records(start: str = "", root: Path | None = None, *, end: str = "") -> Iterator[Pair]:
    """Configuration and run.json of each record of such a name, in the order of the names.

    Args:
        start, end: of the records' names, which end with the runs' identities.
        root: of the records; None: that of the repo.

    Raises:
        UserError: one of them does not count. A page must not silently lose a row.
    """
    for record in named(root or EXPERIMENTS, start):
        if record.path.name.endswith(end):
            yield record.config, record.result


def named(root: Path, start: str) -> list[Record]:
    """The records whose names start so, sorted by name."""
    return [each for each in _all(root) if each.path.name.startswith(start)]


@cache  # a dozen blocks read the same records
def _all(root: Path) -> list[Record]:
    found = [record for folder in folders([root]) for record in read(folder)]
    return sorted(found, key=lambda record: record.path.name)
