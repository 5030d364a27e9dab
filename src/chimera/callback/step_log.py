"""A CSV row per optimiser step with exactly the fields of TITAN Table 5 (SPEC T5).

Append-only and flushed per row: it is the durable record, whatever happens to the process.
"""

from __future__ import annotations

import csv
from pathlib import Path

import torch

from chimera.callback.steps import Step

FIELDS = (
    "timestamp",
    "epoch",
    "step",
    "global_step",
    "loss",
    "accuracy",
    "learning_rate",
    "grad_norm",
    "scaler_scale",
    "gpu_memory_gb",
    "gpu_cached_gb",
)


class StepLog:
    """Writes rows; on resume the rows past the resumed step are cut off first.

    Args:
        path: of the CSV file.
        lr: base rate; `learning_rate` is what the schedule makes of it at that step.
        resumed_step: optimiser steps already taken by the checkpoint resumed from.
    """

    def __init__(self, path: Path, lr: float, resumed_step: int = 0) -> None:
        self.path, self.lr = path, lr
        kept = _rows(path, resumed_step)
        self._file = path.open("w", newline="", encoding="utf-8")
        self._csv = csv.writer(self._file)
        self._csv.writerow(FIELDS)
        self._csv.writerows(kept)
        self._file.flush()

    def __call__(self, step: Step) -> None:
        cuda = torch.cuda.is_available()
        clipped = min(step.grad_norm, step.clip) if step.clip else step.grad_norm
        self._csv.writerow(
            (
                step.timestamp,
                step.epoch,
                step.step,
                step.global_step,
                step.loss,
                step.accuracy,
                self.lr * step.factor,
                clipped,  # Table 5: the norm after clipping
                step.scaler_scale,
                torch.cuda.memory_allocated() / 1e9 if cuda else 0.0,
                torch.cuda.memory_reserved() / 1e9 if cuda else 0.0,
            )
        )
        self._file.flush()

    def close(self) -> None:
        """Nothing is written after this."""
        self._file.close()


def read(path: Path) -> list[dict[str, str]]:
    """The rows of a step log, as text by field."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _rows(path: Path, up_to: int) -> list[list[str]]:
    """Rows of an earlier start up to a step; a last line torn by a kill is dropped."""
    if not path.exists() or up_to == 0:
        return []
    rows = read(path)
    whole = [r for r in rows if None not in r.values() and (r["global_step"] or "").isdigit()]
    return [[r[f] for f in FIELDS] for r in whole if int(r["global_step"]) <= up_to]
