"""Read the step log of a run: rows, smoothed values, summaries by epoch (SAIDL Tables 11 to 13)."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any

from chimera.errors import UserError, one_line
from chimera.rundir.safe_io import read_text

#: Columns without which a file is no step log.
NEEDED = ("timestamp", "global_step", "loss")


def read(path: Path) -> list[dict[str, str]]:
    """Read the rows of a step log that have a step and a time, each as text by column.

    A damaged row is left out, and there are none without a file.

    Raises:
        UserError: it is no step log.
    """
    return [row for row in _rows(path, NEEDED) if row["global_step"].isdigit() and _is_time(row)]


def _rows(path: Path, needed: Sequence[str]) -> list[dict[str, str]]:
    """All whole rows of a CSV file.

    Raises:
        UserError: it cannot be read, or lacks a column that is needed.
    """
    try:
        lines = read_text(path, errors="replace").split("\n")
        reader = csv.DictReader(lines)
        lacking = set(needed) - set(reader.fieldnames or needed)
        if lacking:
            raise UserError(f"{path} is no step log: it has no column {min(lacking)}")
        return [row for row in reader if None not in row and None not in row.values()]
    except FileNotFoundError:
        return []
    except (OSError, csv.Error) as error:
        raise UserError(f"{path} cannot be read: {one_line(error)[:200]}") from error


def _is_time(row: Mapping[str, str]) -> bool:
    try:
        datetime.fromisoformat(row["timestamp"])
    except ValueError:
        return False
    return True


def number(text: str) -> float:
    """A number of a step log; NaN for what is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def header(path: Path) -> list[str]:
    """Names of the columns of a step log; empty without a file, or where it has no first line."""
    if not path.is_file():
        return []
    with path.open("rb") as file:
        line = file.readline(1 << 16)
    return line.decode("utf-8", "replace").rstrip("\r\n").split(",") if line[-1:] == b"\n" else []


def move_aside(path: Path) -> None:
    """Rename a file that is no step log to `<name>-<n>`, if there is one: it may be somebody's."""
    if path.exists() or path.is_symlink():
        names = (path.with_name(f"{path.stem}-{n}{path.suffix}") for n in count(1))
        path.rename(next(name for name in names if not name.exists()))


def losses(log: Path | Mapping[str, Sequence[float | None]]) -> tuple[list[float], list[float]]:
    """Steps and losses of a step log, without steps that have no loss.

    Args:
        log: steps.csv, which may be missing, or the columns of a record, which has some steps.
    """
    if isinstance(log, Path):
        rows = _rows(log, ("global_step", "loss"))
        pairs = ((number(row["global_step"]), row["loss"]) for row in rows)
        kept = [(step, number(loss)) for step, loss in pairs if loss and not math.isnan(step)]
    else:
        columns = zip(log.get("global_step", ()), log.get("loss", ()), strict=True)
        kept = [(float(step), loss) for step, loss in columns if step and loss is not None]
    return [step for step, _ in kept], [loss for _, loss in kept]


def seconds_of(rows: Sequence[Mapping[str, str]]) -> list[float]:
    """Seconds from the first row of a step log to each row."""
    times = [datetime.fromisoformat(row["timestamp"]) for row in rows]
    return [(time - times[0]).total_seconds() for time in times]


def smooth(values: list[float], reach: int | None = None) -> list[float]:
    """Weighted mean of the steps around each one, triangular: it does not lag behind a slope.

    A value that is not finite is skipped. Near the first step the window is narrower, so that it
    stays centred; near the last one it ends there.

    Args:
        values: of consecutive steps.
        reach: steps on each side of a step; None: a fortieth of all.
    """
    half = len(values) // 80 if reach is None else reach // 2
    return _centred(_centred(values, half), half)


def _centred(values: list[float], half: int) -> list[float]:
    """Mean of the finite values within `half` steps; NaN where there are none."""
    sums = [0.0]
    counts = [0]
    for value in values:
        finite = math.isfinite(value)
        sums.append(sums[-1] + (value if finite else 0.0))
        counts.append(counts[-1] + finite)
    out = []
    for place in range(len(values)):
        first = place - min(half, place)
        end = min(place + min(half, place) + 1, len(values))
        count = counts[end] - counts[first]
        out.append((sums[end] - sums[first]) / count if count else math.nan)
    return out


def validated(record: Mapping[str, Any]) -> list[tuple[int, float]]:
    """(step, loss) of a finished run's validations on the way and of the one at its end.

    The one at the end is left out where the run records that of its best epoch.

    Args:
        record: contents of run.json.
    """
    found = [(int(step), float(loss)) for step, loss in record.get("validations") or []]
    end = record.get("steps")
    loss = (record.get("metrics") or {}).get("val/loss")
    scored = any("score" in epoch for epoch in (record.get("epochs") or {}).values())
    if end and loss is not None and not scored and (not found or found[-1][0] < int(end)):
        found.append((int(end), float(loss)))
    return found


def epochs(
    log: Path, validations: Sequence[tuple[int, float]], scores: Sequence[tuple[int, float]]
) -> dict[str, dict[str, float]]:
    """Summarise each validation, by its number from 1.

    A summary holds `step`, `loss`, `score` (the monitored metric, if `scores` has the step),
    `train_loss` (mean since the last validation) and `seconds` since the first step, pauses of the
    run included.

    Args:
        log: steps.csv of the run.
        validations: steps and losses.
        scores: steps and values of the metric that chooses the best checkpoint.
    """
    rows = read(log)
    by_step = {int(row["global_step"]): row for row in rows}
    score = dict(scores)
    summaries: dict[str, dict[str, float]] = {}
    last = 0
    start = datetime.fromisoformat(rows[0]["timestamp"]) if rows else datetime.min
    for place, (step, loss) in enumerate(validations, 1):
        losses = [number(by_step[s]["loss"]) for s in range(last + 1, step + 1) if s in by_step]
        summaries[str(place)] = {"step": step, "loss": loss}
        if step in score:
            summaries[str(place)]["score"] = score[step]
        if losses and step in by_step:
            time = datetime.fromisoformat(by_step[step]["timestamp"])
            summaries[str(place)] |= {
                "train_loss": sum(losses) / len(losses),
                "seconds": (time - start).total_seconds(),
            }
        last = step
    return summaries
