"""The step log of a run, read again: rows, smoothed, and by epoch (SAIDL Tables 11 to 13)."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path


def read(path: Path) -> list[dict[str, str]]:
    """The rows of a step log, as text by field."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def smooth(values: list[float], keep: float = 0.95) -> list[float]:
    """Exponential mean, corrected for its start."""
    out, mean, weight = [], 0.0, 0.0
    for value in values:
        value = value if math.isfinite(value) else mean / (weight or 1)  # a step left out
        mean, weight = keep * mean + (1 - keep) * value, keep * weight + (1 - keep)
        out.append(mean / weight)
    return out


def epochs(
    log: Path, validations: Sequence[tuple[int, float]], scores: Sequence[tuple[int, float]]
) -> dict[str, dict[str, float]]:
    """By the number of the validation, from 1: step, loss, score, training loss since the last.

    `seconds` are those since the first step, stops of the run among them.

    Args:
        log: steps.csv of the run.
        validations: steps and losses.
        scores: steps and what best is judged by.
    """
    rows = read(log)
    by_step = {int(row["global_step"]): row for row in rows}
    score = dict(scores)
    found: dict[str, dict[str, float]] = {}
    before, began = 0, datetime.fromisoformat(rows[0]["timestamp"]) if rows else datetime.min
    for number, (step, loss) in enumerate(validations, 1):
        since = [float(by_step[at]["loss"]) for at in range(before + 1, step + 1) if at in by_step]
        found[str(number)] = {"step": step, "loss": loss}
        if step in score:
            found[str(number)]["score"] = score[step]
        if since:
            then = datetime.fromisoformat(by_step[step]["timestamp"])
            found[str(number)] |= {
                "train_loss": sum(since) / len(since),
                "seconds": (then - began).total_seconds(),
            }
        before = step
    return found
