"""Keep status.json of a run: RUNNING while it is at work, then DONE, STOPPED or FAILED.

A thread writes it every few seconds with the step and the loss: the run's heartbeat.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from chimera.callback.log.steps import Steps
from chimera.errors import FULL, OF_DISK, Interrupted, LostProcessError, UserError
from chimera.rundir import checkpoints as files
from chimera.rundir.directory import HEARTBEAT, RunDir
from chimera.train.ranks import Ranks, readable_lost_processes


@contextlib.contextmanager
def run_status(
    ranks: Ranks, directory: RunDir, callbacks: Sequence[Any], start: int, max_steps: int
) -> Iterator[None]:
    """Keep status.json: RUNNING inside, then DONE, STOPPED or FAILED, with the reason.

    Rank 0 writes it for all; if rank 0 is gone, rank 1 writes that the run has failed.

    Args:
        ranks: the processes of the run.
        directory: of the run.
        callbacks: of the run, of which `Steps` knows the last step.
        start: optimiser steps already taken.
        max_steps: of the run.

    Raises:
        UserError: the disk is full.
        LostProcessError: another process has ended or does not answer.
    """
    if not ranks.first:
        with _speak_for_the_first(ranks, directory):
            yield
        return
    steps = next(callback for callback in callbacks if isinstance(callback, Steps))
    began = datetime.now(UTC).isoformat()
    ended = threading.Event()

    def mark(state: str, **more: object) -> None:
        last = steps.last
        step, loss = (start, None) if last is None else (last.global_step, last.loss)
        about = {"started": began, "step": step, "max_steps": max_steps, "loss": loss}
        directory.write_status(state, **about, **more)

    def beat() -> None:
        while not ended.wait(HEARTBEAT):
            with contextlib.suppress(OSError):  # a full disk is for the training thread to report
                mark("RUNNING")

    def end(state: str, **more: object) -> None:
        ended.set()
        heart.join()
        mark(state, **more)

    heart = threading.Thread(target=beat, name="heartbeat", daemon=True)
    mark("RUNNING")
    heart.start()
    try:
        with readable_lost_processes(ranks.timeout):
            yield
    except (Interrupted, KeyboardInterrupt) as stopped:
        end("STOPPED", why=str(stopped) or "stopped by Ctrl-C")
        raise
    except BaseException as error:
        with contextlib.suppress(OSError):  # the disk may be what failed
            end("FAILED", why=f"{type(error).__name__}: {error}")
        if why := _of_the_disk(directory, error):
            raise UserError(why) from error
        raise
    end("DONE")


@contextlib.contextmanager
def _speak_for_the_first(ranks: Ranks, directory: RunDir) -> Iterator[None]:
    """On another rank: if rank 0 is gone, rank 1 writes that the run has failed."""
    try:
        with readable_lost_processes(ranks.timeout):
            yield
    except LostProcessError:
        if ranks.rank == 1 and directory.first_is_gone():
            directory.mark_failed("the first process ended or did not answer")
        raise


def _of_the_disk(directory: RunDir, error: BaseException) -> str:
    """What happened to the run's directory; empty if the error has another reason."""
    moved = not (directory.path / "config.yaml").is_file()
    if moved or (isinstance(error, FileNotFoundError) and not directory.checkpoints.is_dir()):
        gone = directory.path if moved else directory.checkpoints
        return (
            f"{gone} was renamed or removed while the run trained there; the same command goes on"
            " from the checkpoints when they are back under this name"
        )
    if not (isinstance(error, OSError) and error.errno in OF_DISK):
        return ""
    kept = files.newest(directory.checkpoints)
    good = f"{kept.path} (step {kept.step}) is intact" if kept.path else "none was saved"
    why = os.strerror(error.errno)
    free = "free some space and " * (error.errno in FULL)
    return (
        f"{why[0].lower()}{why[1:]}: {directory.path}; last checkpoint: {good};"
        f" {free}start the same command again"
    )
