"""`chimera store add|check`: keep finished runs' records in a folder that git takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from chimera.cli.command import HELP, exit_code
from chimera.errors import UserError, nearest

USAGE = (
    "chimera store add [<run or folder of runs> …] [overwrite=true] [weights=true],"
    " chimera store check"
)
#: What can be done with a store.
ACTIONS = ("add", "check")


@dataclass(frozen=True)
class Options:
    """Options besides the runs, by default those in ./runs.

    `add` writes the records of finished runs into ./store (CHIMERA_STORE names another folder):
    run.json, the configuration, a thinned step log, machine and commit; weights only if asked for,
    no path of this machine. They count as finished runs of sweeps and tables wherever the folder
    is. `check` names the records that do not count.

    Args:
        overwrite: replace a record of the same run with other numbers.
        weights: keep the best weights and the tokenizer of the runs named, so that others start
            from them where the runs are not (`init_from=`).
    """

    overwrite: bool = False
    weights: bool = False


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code."""
    return exit_code(lambda: _command(list(arguments)))


def _command(arguments: list[str]) -> int:
    from chimera.config.arguments import describe, read

    if set(arguments) & HELP:
        print(describe(Options, USAGE))
        return 0
    action, *rest = arguments or [""]
    if action not in ACTIONS:
        raise UserError(f"store takes {' or '.join(ACTIONS)}{nearest(action, ACTIONS)}: {USAGE}")
    remaining: list[str] = []
    options = read(Options, rest, USAGE, unread=remaining)
    for text in remaining:
        if text.startswith("-") or ("=" in text and not Path(text).exists()):
            raise UserError(f"cannot read '{text}'; write {USAGE}")
    if action == "add":
        return _add([Path(text).expanduser() for text in remaining], options)
    if remaining or options != Options():
        raise UserError(f"store check takes no more words; write {USAGE}")
    return _check()


def _add(places: Sequence[Path], options: Options) -> int:
    """Add runs; one that is named and cannot be added is an error, one in a folder is left out."""
    from rich.filesize import decimal as size

    from chimera.paths import runs_root, store_root
    from chimera.report.comparison import directories, is_run
    from chimera.rundir.keep import add

    added, same, left, total = 0, 0, list[str](), 0
    named = {place for place in places if is_run(place)}
    if options.weights and (not places or named != set(places)):
        raise UserError(f"weights=true is for runs that are named one by one; write {USAGE}")
    for run in directories(list(places) or [runs_root()]):
        try:
            record, new = add(run, replace=options.overwrite, weights=options.weights)
        except UserError as error:
            if run in named:
                raise
            left.append(str(error))
            continue
        added, same = added + new, same + (not new)
        if new:
            bytes_ = sum(f.stat().st_size for f in record.rglob("*") if f.is_file())
            total += bytes_
            print(f"{record}: {size(bytes_)}")
    for line in left:
        print(f"left out: {line}")
    unchanged = f", {same} there already" if same else ""
    print(f"{added} added to {store_root()}, {size(total)}{unchanged}")
    return 0


def _check() -> int:
    """Name the records that do not count; returns 1 if there are any."""
    from chimera.errors import one_line
    from chimera.paths import store_root
    from chimera.rundir.store import check, paths

    root = store_root()
    if not root.is_dir():
        raise UserError(f"{root} is no folder; chimera store add <runs> makes it")
    found, wrong = paths(root), 0
    for path in found:
        try:
            check(path)
        except UserError as error:
            wrong += 1
            print(f"not counted: {one_line(error)}")
    print(f"{len(found) - wrong} of {len(found)} records in {root} count")
    return int(bool(wrong))
