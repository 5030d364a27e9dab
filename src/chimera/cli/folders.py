"""Commands on runs and folders that hold runs: `compare`, `records`, `clean`."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rich.filesize import decimal as size

from chimera.cli.command import command
from chimera.errors import UserError, nearest, one_line
from chimera.paths import cache_root, runs_root
from chimera.safe_io import expanded
from chimera.types import PositiveInt

if TYPE_CHECKING:
    from chimera.rundir.cleanup import Removal
    from chimera.rundir.records import Record

ACTIONS = ("add", "check")
WORDS = "[<run or folder of runs> …]"


@dataclass(frozen=True)
class Comparison:
    """Options besides the runs.

    Args:
        by: keys to compare by, such as mixer or optim.lr; runs that differ in other keys are
            averaged, and their row says so. By default all keys in which the runs differ, but the
            seed.
        metric: key of run.json's metrics; by default that of the runs' table, or the perplexity.
        better: lower or higher; by default as the metric's name says.
        out: folder for the files; by default below reports/compare/, or compare/ beside the runs.
    """

    by: list[str] = field(default_factory=list)
    metric: str | None = None
    better: Literal["lower", "higher"] | None = None
    out: Path | None = None


@dataclass(frozen=True)
class Kept:
    """Options besides the runs, by default those in ./runs.

    `add` keeps the results of finished runs: configuration, run.json, a thinned step log, machine
    and commit; no weights, and no path of this machine. Each folder has its records in
    runs.jsonl.gz and a list of them in runs.txt. They count as finished runs of sweeps and tables.
    `check` reads all records below ./experiments and ./records (CHIMERA_RECORDS names another
    folder) and names those that do not count.

    Args:
        to: folder of the records; by default experiments/<table>/results/<scale> for a row of a
            table, and records/<scale> for other runs.
        overwrite: replace a record of the same run with other numbers.
    """

    to: Path | None = None
    overwrite: bool = False


@dataclass(frozen=True)
class Removals:
    """Options besides the runs, by default those in ./runs.

    Of a finished run the checkpoints beside the last and the best one are surplus, unless a run in
    ./runs or beside those that are named starts from them. Runs in training, directories that no
    run wrote and folders behind links are left alone.

    Args:
        stale: also whole runs that did not finish and that nothing was written to for so many days.
        caches: also prepared text, tokens and tokenizers, which the next run makes again.
        yes: remove what is shown; without it nothing is removed.
    """

    stale: PositiveInt | None = None
    caches: bool = False
    yes: bool = False


@command("compare", Comparison, WORDS)
def compare(options: Comparison, words: list[str]) -> int:
    """Print the comparison, best first, and write its page."""
    from chimera.report.compare_page import show, write_comparison
    from chimera.report.comparison import directories

    found = directories(_paths(words)) if words else _all_runs()
    comparison, folder = write_comparison(
        found, options.out, by=options.by, metric=options.metric, better=options.better
    )
    show(comparison, folder)
    return 0


def _all_runs() -> list[Path | Record]:
    """The runs in ./runs, and the records of those that are not finished there."""
    from chimera.report.comparison import directories, path_of
    from chimera.rundir.records import unfinished

    root = runs_root()
    kept = unfinished(_children(root))
    own = directories([root]) if root.is_dir() or not kept else []
    names = {record.path.name for record in kept}
    return [*(run for run in own if path_of(run).name not in names), *kept]


@command("records", Kept, f"add|check {WORDS}")
def records(options: Kept, words: list[str]) -> int:
    """Add records, or check all."""
    action, *places = words or [""]
    if action not in ACTIONS:
        raise UserError(f"records takes {' or '.join(ACTIONS)}{nearest(action, ACTIONS)}")
    if action == "add":
        return _add(_paths(places), options)
    if places or options != Kept():
        raise UserError("records check takes no more words: it reads all records")
    from chimera.rundir import records as kept

    known = kept.Records()
    good = sum(known.get(digits) is not None for digits in known)
    whys = dict.fromkeys(known.refused.values())
    for folder in kept.folders():
        try:
            kept.records(folder)  # whether list and records agree
        except UserError as error:
            whys[str(error)] = None
    for why in whys:
        print(f"not counted: {one_line(why)}")
    print(f"{good} of {good + len(known.refused)} records count")
    return int(bool(whys))


def _add(places: list[Path], options: Kept) -> int:
    """Add runs; one that is named and cannot be added is an error, one in a folder is left out."""
    from chimera.report.comparison import directories
    from chimera.rundir.records import Record, add, of_run

    found = list[Record]()
    left_out = list[str]()
    for run in directories(places or [runs_root()]):
        try:
            found.append(run if isinstance(run, Record) else of_run(run))
        except UserError as error:
            if run in places:
                raise
            left_out.append(f"left out: {one_line(error)}")
    new = add(found, options.to, overwrite=options.overwrite)
    names = (f"{record.folder}: {one_line(record.path.name)}" for record in new)
    print(*names, *left_out, sep="\n")
    same = len(found) - len(new)
    print(f"{len(new)} added" + (f", {same} there already" if same else ""))
    return 0


@command("clean", Removals, WORDS)
def clean(options: Removals, words: list[str]) -> int:
    """Show what can be removed, and remove it with `yes=true`."""
    from chimera.rundir.cleanup import plan, remove
    from chimera.safe_io import remove_temporary

    runs = _folders(_paths(words) or [runs_root()])
    for folder in {run.parent for run in runs} if options.yes else ():
        with contextlib.suppress(OSError):
            remove_temporary(folder)
    beside = {runs_root(), *(run.resolve().parent for run in runs)}
    every = {*runs, *(run for folder in beside for run in _children(folder))}
    named = _starting_points(every)
    removals = [r for run in runs if (r := plan(run, days=options.stale, named=named))]
    total = 0
    for removal in removals:
        gone = removal.size
        if options.yes:
            try:
                gone = remove(removal, days=options.stale, named=named)
            except UserError as error:
                print(f"left: {one_line(error)}")
                continue
        total += gone
        print(f"{one_line(removal.run)}: {_what(removal)}, {size(gone)}")
    if options.caches:
        total += _clean_caches(every, yes=options.yes)
    if options.yes:
        print(f"removed {size(total)}")
    elif total or removals:
        print(f"{size(total)} can be removed; nothing was: yes=true removes it")
    else:
        print(f"nothing to remove of {len(runs)} run{'s' * (len(runs) != 1)}")
    return 0


def _paths(words: Sequence[str]) -> list[Path]:
    return [expanded(word) for word in words]


def _folders(places: Sequence[Path]) -> list[Path]:
    """The folders that are named, or those in them if they are no runs themselves."""
    found: dict[Path, None] = {}
    for place in places:
        if not place.is_dir():
            raise UserError(f"{place} is no folder; name runs, or a folder that holds them")
        is_run = (place / "config.yaml").is_file()
        found |= dict.fromkeys([place] if is_run else _children(place))
    return list(found)


def _children(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _starting_points(runs: Collection[Path]) -> set[Path]:
    """Checkpoints that runs start from."""
    from chimera.rundir.cleanup import starting_points
    from chimera.rundir.directory import RunDir

    named: set[Path] = set()
    for run in runs:
        if (run / "config.yaml").is_file():
            with contextlib.suppress(UserError):  # nothing is known of a damaged run
                named |= starting_points(RunDir(run).config())
    return named


def _what(removal: Removal) -> str:
    if not removal.kept:
        return f"the whole run ({removal.why})"
    return f"{len(removal.files)} files of checkpoints (keeps {', '.join(removal.kept)})"


def _clean_caches(runs: Collection[Path], *, yes: bool) -> int:
    """Show, or remove, the entries of the cache that no run reads its test set from."""
    from chimera.data.batch.packed import places
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
