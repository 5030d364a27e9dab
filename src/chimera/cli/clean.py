"""`chimera clean`: show what can be removed of runs and caches; remove it with `yes=true`."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from chimera.cli.command import command
from chimera.errors import UserError
from chimera.paths import cache_root, runs_root
from chimera.types import PositiveInt

if TYPE_CHECKING:
    from chimera.rundir.cleanup import Removal


@dataclass(frozen=True)
class Options:
    """Options besides the runs, by default those in ./runs.

    Of a finished run the checkpoints beside the last and the best one are surplus. Runs in
    training, directories that no run wrote and folders behind links are left alone.

    Args:
        stale: also whole runs that did not finish and that nothing was written to for so many days.
        caches: also prepared text, tokens and tokenizers, which the next run makes again.
        yes: remove what is shown; without it nothing is removed.
    """

    stale: PositiveInt | None = None
    caches: bool = False
    yes: bool = False


@command("clean", Options, "[<run or folder of runs> …]")
def main(options: Options, words: list[str]) -> int:
    """Show what can be removed, and remove it with `yes=true`."""
    from rich.filesize import decimal as size

    from chimera.rundir.cleanup import plan, remove
    from chimera.safe_io import remove_temporary

    runs = _runs(words)
    for folder in {run.parent for run in runs} if options.yes else ():
        with contextlib.suppress(OSError):
            remove_temporary(folder)
    every = {*runs, *_children(runs_root())}
    named = _named(every)
    removals = [r for run in runs if (r := plan(run, days=options.stale, named=named))]
    total = 0
    for removal in removals:
        gone = removal.size
        if options.yes:
            try:
                gone = remove(removal, days=options.stale, named=named)
            except UserError as error:
                print(f"left: {error}")
                continue
        total += gone
        print(f"{removal.run}: {_what(removal)}, {size(gone)}")
    if options.caches:
        total += _caches(every, yes=options.yes)
    if options.yes:
        print(f"removed {size(total)}")
    elif total or removals:
        print(f"{size(total)} can be removed; nothing was: yes=true removes it")
    else:
        print(f"nothing to remove of {len(runs)} run{'s' * (len(runs) != 1)}")
    return 0


def _runs(places: Sequence[str]) -> list[Path]:
    """The folders that are named, or those in them if they are no runs themselves."""
    found: dict[Path, None] = {}
    for place in [Path(text).expanduser() for text in places] or [runs_root()]:
        if not place.is_dir():
            raise UserError(f"{place} is no folder; name runs, or a folder that holds them")
        is_run = (place / "config.yaml").is_file()
        found |= dict.fromkeys([place] if is_run else _children(place))
    return list(found)


def _children(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _named(runs: Collection[Path]) -> set[Path]:
    """Checkpoints that runs start from."""
    from chimera.rundir.cleanup import starting_points
    from chimera.rundir.directory import RunDir

    named: set[Path] = set()
    for run in runs:
        if (run / "config.yaml").is_file():
            try:
                named |= starting_points(RunDir(run).config())
            except UserError:  # nothing is known of a damaged run
                continue
    return named


def _what(removal: Removal) -> str:
    if not removal.kept:
        return f"the whole run ({removal.why})"
    return f"{len(removal.files)} files of checkpoints (keeps {', '.join(removal.kept)})"


def _caches(runs: Collection[Path], *, yes: bool) -> int:
    """Show, or remove, the entries of the cache that no run reads its test set from."""
    from rich.filesize import decimal as size

    from chimera.data.batch.stored import places
    from chimera.data.source import cache

    kept = {place for run in runs for place in places(run / "test.npz")}
    total = 0
    for entry, count in cache.removable(cache_root(), kept):
        if yes and not cache.remove(entry):
            print(f"left: {entry}, which a process is making")
            continue
        total += count
        print(f"{entry}: {size(count)}")
    return total
