"""Read the step log of a run: rows, smoothed values, summaries by epoch (SAIDL Tables 11 to 13)."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chimera.errors import UserError, one_line
from chimera.safe_io import read_text

if TYPE_CHECKING:
    import pandas

#: Columns that are read, and those without which a file is no step log.
COLUMNS = ("timestamp", "global_step", "loss", "accuracy", "learning_rate", "grad_norm")
NEEDED = COLUMNS[:3]


def read(path: Path) -> pandas.DataFrame:
    """Read a step log: numbers by column, NaN where there is none, seconds since the first row.

    A row without a step or a time is left out, as is a last line torn by a kill. There are no rows
    without a file.

    Raises:
        UserError: it cannot be read, or is no step log.
    """
    import pandas

    how: Any = {"dtype": str, "quoting": csv.QUOTE_NONE, "on_bad_lines": "skip"}
    try:
        text = read_text(path, errors="replace")
        whole = text[: text.rfind("\n") + 1] or text or ",".join(NEEDED)
        log = pandas.read_csv(
            io.StringIO(whole), usecols=COLUMNS.__contains__, index_col=False, **how
        )
    except FileNotFoundError:
        log = pandas.DataFrame(columns=NEEDED, dtype=str)
    except (OSError, ValueError) as error:  # those of pandas' parser, too
        raise UserError(f"{path} cannot be read: {one_line(error)[:200]}") from error
    if lacking := [name for name in NEEDED if name not in log]:
        raise UserError(f"{path} is no step log: it has no column {lacking[0]}")
    times = pandas.to_datetime(log["timestamp"], format="ISO8601", utc=True, errors="coerce")
    numbers = log.drop(columns="timestamp").apply(pandas.to_numeric, errors="coerce").astype(float)
    rows = times.notna() & numbers["global_step"].between(0, 2**53)
    seconds = (times[rows] - times[rows].head(1).max()).dt.total_seconds()
    kept = numbers[rows].assign(timestamp=log["timestamp"], seconds=seconds)
    return kept.reset_index(drop=True)


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
        kept = read(log)[["global_step", "loss"]].dropna()
        return kept["global_step"].tolist(), kept["loss"].tolist()
    columns = zip(log.get("global_step", ()), log.get("loss", ()), strict=True)
    pairs = [(float(step), loss) for step, loss in columns if step and loss is not None]
    return [step for step, _ in pairs], [loss for _, loss in pairs]


def smooth(values: list[float], reach: int | None = None) -> list[float]:
    """Weighted mean of the steps around each one, triangular: it does not lag behind a slope.

    A value that is not finite is skipped. Near the first step the window is narrower, so that it
    stays centred; near the last one it ends there.

    Args:
        values: of consecutive steps.
        reach: steps on each side of a step; None: a fortieth of all.
    """
    import numpy as np

    half = len(values) // 80 if reach is None else reach // 2
    place = np.arange(len(values))
    first = place - np.minimum(half, place)
    end = np.minimum(2 * place - first + 1, len(values))
    found = np.array(values, dtype=float)
    for _ in range(2):
        finite = np.isfinite(found)
        sums, counts = (
            np.concatenate([[0], np.cumsum(each)]) for each in (np.where(finite, found, 0), finite)
        )
        with np.errstate(invalid="ignore"):  # 0 / 0 where no value is finite
            found = (sums[end] - sums[first]) / (counts[end] - counts[first])
    return found.tolist()


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
    rows = read(log).drop_duplicates("global_step", keep="last").set_index("global_step")
    score = dict(scores)
    summaries: dict[str, dict[str, float]] = {}
    last = 0
    for number, (step, loss) in enumerate(validations, 1):
        losses = rows["loss"].reindex(range(last + 1, step + 1)).dropna().tolist()
        summaries[str(number)] = {"step": step, "loss": loss}
        if step in score:
            summaries[str(number)]["score"] = score[step]
        if losses and step in rows.index:
            summaries[str(number)] |= {
                "train_loss": sum(losses) / len(losses),
                "seconds": float(rows["seconds"][step]),
            }
        last = step
    return summaries
