"""Records of the repo's store, for the blocks of pages that are written from them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from chimera.paths import ROOT
from chimera.rundir.store import FILES, check, paths

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
            files = [file for name in FILES if (file := path / name).exists()]
            yield _read(path, tuple(file.stat().st_mtime_ns for file in files))


@cache  # a dozen blocks read the same records
def _read(path: Path, times: tuple[int, ...]) -> Pair:
    """A record; `times` are when its files were written. Nobody changes what it returns."""
    directory = check(path)
    return directory.config(), directory.record()
