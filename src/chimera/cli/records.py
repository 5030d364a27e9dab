"""`chimera records add|check`: keep the results of finished runs in files for git."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from chimera.cli.command import command
from chimera.errors import UserError, nearest, one_line

ACTIONS = ("add", "check")


@dataclass(frozen=True)
class Options:
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


@command("records", Options, "add|check [<run or folder of runs> …]")
def main(options: Options, words: list[str]) -> int:
    """Add records, or check all."""
    action, *places = words or [""]
    if action not in ACTIONS:
        raise UserError(f"records takes {' or '.join(ACTIONS)}{nearest(action, ACTIONS)}")
    if action == "add":
        return _add([Path(place).expanduser() for place in places], options)
    if places or options != Options():
        raise UserError("records check takes no more words: it reads all records")
    return _check()


def _add(places: list[Path], options: Options) -> int:
    """Add runs; one that is named and cannot be added is an error, one in a folder is left out."""
    from chimera.paths import runs_root
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
            left_out.append(one_line(error))
    new = add(found, options.to, overwrite=options.overwrite)
    for record in new:
        print(f"{record.folder}: {record.path.name}")
    for line in left_out:
        print(f"left out: {line}")
    same = len(found) - len(new)
    print(f"{len(new)} added" + (f", {same} there already" if same else ""))
    return 0


def _check() -> int:
    """Name the records that do not count; returns 1 if there are any."""
    from chimera.rundir.records import Records

    known = Records()
    good = sum(known.get(digits) is not None for digits in known)
    for why in dict.fromkeys(known.refused.values()):
        print(f"not counted: {one_line(why)}")
    print(f"{good} of {good + len(known.refused)} records count")
    return int(bool(known.refused))
