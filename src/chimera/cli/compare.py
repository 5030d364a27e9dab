"""`chimera compare runs/… [by=key]`: compare runs by what they were told and what came of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from chimera.cli.command import command

if TYPE_CHECKING:
    from chimera.rundir.records import Record


@dataclass(frozen=True)
class Options:
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


@command("compare", Options, "[<run or folder of runs> …]")
def main(options: Options, words: list[str]) -> int:
    """Print the comparison, best first, and write its page."""
    from chimera.report.compare_page import show, write_comparison
    from chimera.report.comparison import directories

    places = [Path(word).expanduser() for word in words]
    found = directories(places) if places else _all()
    comparison, folder = write_comparison(
        found, options.out, by=options.by, metric=options.metric, better=options.better
    )
    show(comparison, folder)
    return 0


def _all() -> list[Path | Record]:
    """The runs in ./runs, and the records of those that are not finished there."""
    from chimera.paths import runs_root
    from chimera.report.comparison import directories, path_of
    from chimera.rundir.records import unfinished

    root = runs_root()
    kept = unfinished(root.iterdir() if root.is_dir() else ())
    own = directories([root]) if root.is_dir() or not kept else []
    names = {record.path.name for record in kept}
    return [*(run for run in own if path_of(run).name not in names), *kept]
