"""`chimera estimate …`: memory, disk and time of a run or a table before it starts."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from chimera.cli.errors import exit_code
from chimera.cli.flags import HELP
from chimera.types import NonNegativeFloat

if TYPE_CHECKING:
    from chimera.sweep.cost import Estimate

USAGE = "chimera estimate [group=choice …] [group=a,b] [+<paper>=<table>] [workers=2] [seconds=5]"


@dataclass(frozen=True)
class Options:
    """Options besides the arguments of `chimera train` and `chimera sweep`.

    Args:
        seconds: of real steps, measured for each configuration; 0 counts FLOPs instead.
        limit: seconds for all measurements; what is left over is estimated from FLOPs.
        format: text or json.
    """

    seconds: NonNegativeFloat = 5.0
    limit: NonNegativeFloat = 300.0
    format: Literal["text", "json"] = "text"


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code."""
    return exit_code(lambda: _command(list(arguments)))


def _command(arguments: list[str]) -> int:
    from chimera.cli.flags import read_flags
    from chimera.config.arguments import describe, read
    from chimera.config.roots import read_folders

    if set(arguments) & HELP:
        print(describe(Options, USAGE))
        return 0
    remaining: list[str] = []
    options = read(Options, read_folders(arguments), USAGE, unread=remaining)
    overrides = read_flags(remaining).overrides
    from chimera.sweep.expand import expand

    jobs = expand(overrides)
    from chimera.paths import runs_root
    from chimera.sweep.cost import free_memory
    from chimera.sweep.estimate import Estimator

    workers = jobs[-1].config["workers"]

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    estimator = Estimator(seconds=options.seconds, limit=options.limit, workers=workers, say=say)
    found = estimator.all(jobs)
    sums = totals(found, workers)
    if options.format == "json":
        print(json.dumps({"runs": [asdict(each) for each in found], "total": sums}, indent=2))
        return 0
    place = next(p for p in (runs_root().absolute(), *runs_root().absolute().parents) if p.is_dir())
    free = {"memory": free_memory(), "disk": float(shutil.disk_usage(place).free)}
    print(text(found, sums, free, place))
    return 0


def totals(found: Sequence[Estimate], workers: int) -> dict[str, Any]:
    """Sums of what is left to do: runs, steps, seconds, memory of runs at the same time, disk."""
    from chimera.sweep.cost import makespan

    left = [each for each in found if each.how != "done"]
    peaks = sorted((each.memory for each in left), reverse=True)
    return {
        "runs": len(found),
        "done": len(found) - len(left),
        "workers": workers,
        "steps": sum(each.steps for each in left),
        "seconds": makespan([each.seconds for each in left], workers),
        "seconds_of_all": sum(each.seconds for each in left),
        "memory": sum(peaks[:workers]),
        "disk": sum(each.disk for each in left),
    }


def text(
    found: Sequence[Estimate], sums: dict[str, Any], free: dict[str, float], place: Path
) -> str:
    """The estimates as a table of fixed width, and their sums.

    Args:
        found: of the runs.
        sums: of `totals`.
        free: bytes of memory and disk that are free.
        place: folder whose disk it is.
    """
    head = ("run", "steps", "tokens/s", "time", "memory", "disk", "from")
    rows = [_row(each) for each in found]
    widths = [max(len(row[at]) for row in (head, *rows)) for at in range(len(head) - 1)]
    lines = []
    for row in (head, *rows):
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:-1], widths[1:], strict=True)]
        lines.append("  ".join([*cells, row[-1]]).rstrip())
    notes: dict[str, list[str]] = {}
    for each in found:
        if each.note:
            notes.setdefault(each.note, []).append(each.name)
    for note, names in notes.items():
        where = names[0] if len(names) == 1 else f"{len(names)} runs"
        lines.append(f"  {where}: {note}")
    done = f", {sums['done']} of them done" if sums["done"] else ""
    at_once = ""
    if sums["workers"] > 1:
        apart = duration(sums["seconds_of_all"])
        at_once = f" with workers={sums['workers']} (one after the other: {apart})"
    runs = f"{sums['runs']} run{'s' * (sums['runs'] != 1)}"
    lines += [
        "",
        f"{runs}{done}: {duration(sums['seconds'])}{at_once},"
        f" {size(sums['memory'])} of memory ({size(free['memory'])} free),"
        f" {size(sums['disk'])} of disk ({size(free['disk'])} free in {place})",
    ]
    lines += [
        f"too little {name}: {advice}"
        for name, advice in (
            ("memory", "lower workers=, data.batch_size= or scale="),
            ("disk", "lower trainer.checkpoint_keep=, or set trainer.checkpoint_keep_epochs=1"),
        )
        if sums[name] > free[name]
    ]
    return "\n".join(lines)


def _row(each: Estimate) -> tuple[str, ...]:
    if each.how == "done":
        return (each.name, "", "", "", "", "", "done")
    rate = f"{each.tokens_per_second:,.0f}" if each.tokens_per_second else "?"
    steps = f"{each.steps:,}" if each.steps else "?"
    spent = duration(each.seconds) if each.steps and each.tokens_per_second else "?"
    return each.name, steps, rate, spent, size(each.memory), size(each.disk), each.how


def duration(seconds: float) -> str:
    """Seconds as minutes:seconds, hours:minutes:seconds or days, such as `2 d 03:00:00`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if not (days or hours):
        return f"{minutes}:{rest:02}"
    return f"{f'{days} d ' if days else ''}{hours:02}:{minutes:02}:{rest:02}"


def size(count: float) -> str:
    """Bytes in a unit of powers of ten."""
    if count == float("inf"):
        return "unknown"
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if count >= scale:
            return f"{count / scale:,.{0 if count >= 100 * scale else 1}f} {unit}"
    return f"{count / 1e3:,.0f} kB"
