"""A run of two processes, one of which has a fault at a step."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback

from tests.torture import faults, job


class Fault(Callback):
    """Acts before a step, if its marker file is not there yet.

    Args:
        kind: kill (SIGKILL), term (SIGTERM), stall (SIGSTOP), raise, poison (a loss of NaN), or
            full (no room for the next checkpoint).
        rank: of the process.
        step: optimiser steps taken before.
        marker: file that is made when the fault happens.
    """

    def __init__(self, *, kind: str, rank: int, step: int, marker: str) -> None:
        self.kind = kind
        self.rank = rank
        self.step = step
        self.marker = Path(marker)

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        here = trainer.global_step == self.step and trainer.global_rank == self.rank
        if not here or self.marker.exists():
            return
        self.marker.touch()
        if self.kind == "raise":
            raise RuntimeError("planted")
        if self.kind == "poison":
            whole = pl_module.total_loss
            pl_module.total_loss = lambda *given: _once(pl_module, whole, given)
        elif self.kind == "full":
            faults.full_at("checkpoint", 1)
        else:
            names = {"kill": signal.SIGKILL, "term": signal.SIGTERM, "stall": signal.SIGSTOP}
            os.kill(os.getpid(), names[self.kind])


def _once(task: Any, whole: Any, given: Any) -> Any:
    """A loss of NaN, and the task's own from then on."""
    task.total_loss = whole
    return whole(given[0] * float("nan"), *given[1:])


ROOT = Path(__file__).resolve().parents[2]
KINDS = ("kill", "term", "stall", "raise", "poison", "skip", "full")
#: The step before which the fault happens.
STEP = 7
#: A process gives up after five seconds.
TWO = ["trainer.devices=2", "data.batch_size=16", "trainer.timeout=5"]
TWO += ["trainer.accelerator=cpu", "trainer.progress=none"]


@dataclass(frozen=True)
class Outcome:
    """What a fault did.

    Args:
        code: exit code of the command.
        state: in status.json, after it.
        same: the losses in the end are those of the undisturbed run.
    """

    code: int
    state: str
    same: bool


def outcome(folder: Path, kind: str, rank: int, strategy: str) -> Outcome:
    """Train with a fault, then again until the run is done, and once without it."""
    to = folder / "run"
    more = fault_words("poison" if kind == "skip" else kind, rank, STEP, folder / "marker")
    more += [f"trainer.strategy={strategy}", *["guard=skip"] * (kind == "skip")]
    done = train(folder, to, *more)
    state = read(to / "status.json").get("state", "none")
    if state != "DONE":
        train(folder, to, *more)
    same = read(to / "status.json")["state"] == "DONE"
    if kind != "skip":
        whole = train(folder, folder / "whole", f"trainer.strategy={strategy}")
        assert whole.returncode == 0, whole.stderr
        same = same and losses(to) == losses(folder / "whole")
    return Outcome(done.returncode, state, same)


def fault_words(kind: str, rank: int, step: int, marker: Path) -> list[str]:
    """Overrides that plant a fault in a process, once."""
    fault = {"kind": kind, "rank": rank, "step": step, "marker": marker}
    words = [f"+callbacks.fault.{key}={value}" for key, value in fault.items()]
    return [*words, "+callbacks.fault._target_=tests.ranks.faults.Fault"]


def train(folder: Path, to: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """Run `train.py` on two processes to its end."""
    line = job.arguments(folder / "text", to, *TWO, *more)
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}/src:{ROOT}", "OMP_NUM_THREADS": "1"}
    environment["PYTHONWARNINGS"] = "ignore"
    command = [sys.executable, str(ROOT / "train.py"), *line]
    return subprocess.run(command, capture_output=True, text=True, env=environment)


def read(file: Path) -> dict[str, Any]:
    """A JSON file, or `{}`."""
    return dict(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else {}


def losses(run: Path) -> list[float]:
    """Loss of each step."""
    return [float(row["loss"]) for row in job.rows(run)]
