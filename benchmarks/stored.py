"""Records of the repo's store, for the blocks of pages that are written from them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from chimera.paths import ROOT
from chimera.rundir.store import check, paths

#: A record's configuration and run.json.
Pair = tuple[dict[str, Any], dict[str, Any]]


def records(start: str = "", root: Path | None = None, *, end: str = "") -> Iterator[Pair]:
    """Configuration and run.json of each record of such a name, in the order of the names.

    Args:
        start, end: of the records' names, which end with the runs' identities.
        root: of the store; None: that of the repo.

    Raises:
        UserError: one of them does not count. A page must not silently lose a row.
    """
    for path in sorted(paths(root or ROOT / "store")):
        if path.name.startswith(start) and path.name.endswith(end):
            directory = check(path)
            yield directory.config(), directory.record()
