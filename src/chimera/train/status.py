"""Keep status.json of a run: RUNNING while it is at work, then DONE, STOPPED or FAILED."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from chimera.callback.log.steps import Steps
from chimera.errors import FULL, Interrupted, LostProcessError, UserError
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
        try:
            with readable_lost_processes(ranks.timeout):
                yield
        except LostProcessError:
            if ranks.rank == 1 and directory.first_is_gone():
                directory.mark_failed("the first process ended or did not answer")
            raise
        return
    steps = next(callback for callback in callbacks if isinstance(callback, Steps))
    heartbeat = Heartbeat(directory, steps, start, max_steps)
    heartbeat.start()
    try:
        with readable_lost_processes(ranks.timeout):
            yield
    except Interrupted as stopped:
        heartbeat.stop("STOPPED", why=str(stopped))
        raise
    except BaseException as error:
        with contextlib.suppress(OSError):  # the disk may be what failed
            heartbeat.stop("FAILED", why=f"{type(error).__name__}: {error}")
        if isinstance(error, OSError) and error.errno in FULL:
            raise _disk_full(directory) from error
        raise
    heartbeat.stop("DONE")


def _disk_full(directory: RunDir) -> UserError:
    kept = files.newest(directory.checkpoints)
    good = f"{kept.path} (step {kept.step}) is intact" if kept.path else "none was saved"
    return UserError(
        f"no space left for {directory.path}; last checkpoint: {good};"
        " free some space and start the same command again"
    )


class Heartbeat:
    """A thread that writes the state, the step and the loss every few seconds.

    Args:
        directory: of the run.
        steps: knows the last step.
        start: optimiser steps already taken.
        max_steps: of the run.
    """

    def __init__(self, directory: RunDir, steps: Steps, start: int, max_steps: int) -> None:
        self.directory = directory
        self.steps = steps
        self._facts: dict[str, object] = {
            "started": datetime.now(UTC).isoformat(),
            "step": start,
            "max_steps": max_steps,
            "loss": None,
        }
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Write RUNNING now and again for as long as the process lives."""
        self._mark("RUNNING")
        self._thread.start()

    def stop(self, state: str, **more: object) -> None:
        """Stop the thread and write the final state."""
        self._end.set()
        self._thread.join()
        self._mark(state, **more)

    def _mark(self, state: str, **more: Any) -> None:
        if (last := self.steps.last) is not None:
            self._facts |= {"step": last.global_step, "loss": last.loss}
        self.directory.write_status(state, **self._facts, **more)

    def _beat(self) -> None:
        while not self._end.wait(HEARTBEAT):
            with contextlib.suppress(OSError):  # a full disk is for the training thread to report
                self._mark("RUNNING")
