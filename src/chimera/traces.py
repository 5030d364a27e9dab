"""How a run went from one validation to the next (SAIDL Tables 11 to 13)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from chimera.callback.step_log import read


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
