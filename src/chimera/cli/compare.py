"""`chimera compare runs/… [by=key]`: compare runs by what they were told and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from chimera.cli.errors import exit_code
from chimera.cli.flags import HELP
from chimera.errors import UserError, nearest

USAGE = "chimera compare [<run or folder of runs> …] [by=<key>,<key>] [metric=…] [out=<folder>]"


@dataclass(frozen=True)
class Options:
    """Options besides the runs.

    Args:
        by: keys to compare by, such as mixer or optim.lr; runs that differ in other keys are
            averaged. By default all keys in which the runs differ, but the seed.
        metric: key of run.json's metrics; by default that of the runs' table, or the perplexity.
        better: lower or higher; by default as the metric's name says.
        out: folder for the files; by default below reports/compare/, or compare/ beside the runs.
    """

    by: list[str] = field(default_factory=list)
    metric: str | None = None
    better: Literal["lower", "higher"] | None = None
    out: Path | None = None


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code."""
    return exit_code(lambda: _command(list(arguments)))


def _command(arguments: list[str]) -> int:
    from chimera.config.arguments import describe, read

    if set(arguments) & HELP:
        print(describe(Options, USAGE))
        return 0
    remaining: list[str] = []
    options = read(Options, _without_flags(arguments), USAGE, unread=remaining)
    places = [_place(text) for text in remaining]
    from chimera.report.comparison import directories

    found = directories(places) if places else _all()
    from rich.console import Console

    from chimera.report.compare_page import show, write_comparison

    comparison, folder = write_comparison(
        found, options.out, by=options.by, metric=options.metric, better=options.better
    )
    console = Console()
    show(comparison, console)
    page = folder / "compare.html"
    console.print(str(page), highlight=False, soft_wrap=True, markup=False)
    return 0


def _all() -> list[Path]:
    """The runs in ./runs, and the records of the store of those that are not finished there."""
    from chimera.paths import runs_root
    from chimera.report.comparison import directories
    from chimera.rundir.store import beside

    root, stored = runs_root(), beside([])
    own = directories([root]) if root.is_dir() or not stored else []
    stored = beside(own)
    names = {path.name for path in stored}
    return [*(path for path in own if path.name not in names), *stored]


def _without_flags(arguments: Sequence[str]) -> list[str]:
    """`--by key` as `by=key`."""
    found, rest = list[str](), list(arguments)
    while rest:
        argument = rest.pop(0)
        if argument == "--by":
            if not rest:
                raise UserError("--by needs a key; write by=mixer")
            argument = f"by={rest.pop(0)}"
        found.append(argument)
    return found


def _place(text: str) -> Path:
    key, equals, _ = text.partition("=")
    path = Path(text).expanduser()
    if text.startswith("-") or (equals and not path.exists()):
        options = ("by", "metric", "better", "out")
        raise UserError(f"cannot read '{text}'{nearest(key, options)}; write {USAGE}")
    return path
