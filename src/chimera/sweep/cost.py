"""Seconds and bytes of a run, added up from those of its parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chimera.sweep.plan import Job
from chimera.train.warmup import Measured

#: Bytes of the small files of a run (configuration, environment, record, picture, log of W&B), and
#: of a row of steps.csv, as in runs of `scale=small`.
FILES, ROW = 180_000, 130.0
#: What W&B adds: seconds as a share of the start-up, and bytes of memory. It is not started to be
#: measured.
WANDB_START, WANDB_MEMORY = 0.6, 50e6


@dataclass(frozen=True)
class Estimate:
    """What a run takes from now on.

    Args:
        name: what tells the run from the others.
        how: source of the numbers.
        steps: optimiser steps that are left.
        tokens_per_second: in training; None if it is not known.
        seconds: from the start of its process to its end.
        memory: peak, in bytes.
        disk: bytes that it adds.
        note: what the numbers leave out.
    """

    name: str
    how: str
    steps: int
    tokens_per_second: float | None
    seconds: float
    memory: float
    disk: float
    note: str = ""


def of_measured(job: Job, found: Measured) -> Estimate:
    """The estimate of a run from a few of its steps."""
    config, trainer = job.config, job.config["trainer"]
    total = found.total or trainer["max_steps"] or 0
    valid = found.valid or trainer["limit_val_batches"] or 0
    test = found.test_batches or trainer["limit_test_batches"] or 0
    saves = total // trainer["checkpoint_every_n_steps"] + 1
    seconds = found.start + found.end + found.step * total
    seconds += found.validation * (passes(config, total, found.epoch) * valid + test)
    seconds += found.save * saves
    wandb = "wandb" in str(config["logger"]).lower()
    seconds += WANDB_START * found.start * wandb
    kept = checkpoints_kept(config, total, found.epoch)
    disk = FILES + found.row * total + found.checkpoint * kept + found.test + found.tokenizer
    notes = [] if found.prepared else ["preparing the text comes on top"]
    if not found.prepared and not trainer["limit_test_batches"]:
        notes.append("so does the test")
    if not total:
        notes.append("the number of steps is known when the data are prepared")
    if any(config["task"].get(key) for key in ("cost_at", "mmlu")):
        notes.append("without the task's further measurements at the end")
    rate = found.tokens / found.step
    how = f"measured, {found.steps} steps"
    memory = found.memory + WANDB_MEMORY * wandb
    return Estimate(job.label, how, total, rate, seconds, memory, disk, "; ".join(notes))


def passes(config: dict[str, Any], steps: int, epoch: int | None = None) -> int:
    """Number of passes through the validation part: during training, at the end, at longer lengths.

    The passes at longer lengths have as many tokens as the others.

    Args:
        config, steps, epoch: as in `validations`.
    """
    return validations(config, steps, epoch) + 1 + len(config["task"].get("longer") or ())


def validations(config: dict[str, Any], steps: int, epoch: int | None = None) -> int:
    """Number of validations during training.

    Args:
        config: of the run.
        steps: of the whole run.
        epoch: micro-batches of an epoch; None if that is not known.
    """
    trainer = config["trainer"]
    per_epoch = -(-epoch // trainer["accumulate_grad_batches"]) if epoch else None
    every: Any = trainer["val_check_interval"]
    if trainer["check_val_every_n_epoch"]:
        every = per_epoch and trainer["check_val_every_n_epoch"] * per_epoch
    elif every == "epoch" or isinstance(every, float):
        every = per_epoch and max(1, int(per_epoch * (1.0 if every == "epoch" else every)))
    return steps // every if every else 0


def checkpoints_kept(config: dict[str, Any], steps: int, epoch: int | None) -> int:
    """Number of different checkpoints after the run, if the last validations are the best.

    Args:
        config: of the run.
        steps: of the whole run.
        epoch: micro-batches of an epoch; None if that is not known.
    """
    trainer = config["trainer"]
    every = trainer["checkpoint_every_n_steps"]
    rolling = sorted({*range(every, steps + 1, every), steps})[-trainer["checkpoint_keep"] :]
    count = validations(config, steps, epoch)
    apart = steps // count if count else 0
    valid = [apart * number for number in range(1, count + 1)]
    ends: list[int] = []
    if epoch and trainer["checkpoint_keep_epochs"] != 0:
        length = -(-epoch // trainer["accumulate_grad_batches"])
        ends = list(range(length, steps + 1, length))
        ends = ends[-(trainer["checkpoint_keep_epochs"] or len(ends)) :]
    best = valid[-trainer["checkpoint_keep_best"] :] if trainer["checkpoint_keep_best"] else []
    return len({*rolling, *best, *ends})


def bytes_saved(trained: float, frozen: float) -> float:
    """Bytes of a checkpoint with so many parameters, in fp32 and with Adam's two moments."""
    return 12.0 * trained + 4.0 * frozen


def makespan(seconds: Sequence[float], workers: int) -> float:
    """Seconds until all runs are done, each started by the worker that is free first."""
    ends = [0.0] * workers
    for each in seconds:
        first = ends.index(min(ends))
        ends[first] += each
    return max(ends)


def size_of(folder: Path) -> int:
    """Bytes of the files below a folder; a file with two names counts once."""
    sizes: dict[tuple[int, int], int] = {}
    for file in folder.rglob("*"):
        if file.is_file() and not file.is_symlink():
            stat = file.stat()
            sizes[stat.st_dev, stat.st_ino] = stat.st_size
    return sum(sizes.values())


def free_memory() -> float:
    """Bytes that new processes can have; infinite where the system does not say."""
    file = Path("/proc/meminfo")
    lines = file.read_text().splitlines() if file.exists() else []
    found = [line.split() for line in lines if line.startswith("MemAvailable:")]
    return 1024.0 * float(found[0][1]) if found else float("inf")
