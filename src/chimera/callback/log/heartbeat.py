"""Keep status.json fresh while a run is at work, so that others see that, and how far, it is."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from typing import Any

from chimera.callback.log.steps import Steps
from chimera.rundir.directory import HEARTBEAT, RunDir


class Heartbeat:
    """A thread that writes the state, the step and the loss every few seconds.

    Args:
        directory: of the run.
        steps: knows the last step.
        start: optimiser steps already taken.
        max_steps: of the run.
        every: seconds.
    """

    def __init__(
        self,
        directory: RunDir,
        steps: Steps,
        start: int,
        max_steps: int,
        every: float = HEARTBEAT,
    ) -> None:
        self.directory, self.steps, self.every = directory, steps, every
        self._started: dict[str, object] = {
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
        if self._thread.is_alive():
            self._thread.join()
        self._mark(state, **more)

    def _mark(self, state: str, **more: Any) -> None:
        last = self.steps.last
        now = {} if last is None else {"step": last.global_step, "loss": last.loss}
        self.directory.write_status(state, **{**self._started, **now, **more})

    def _beat(self) -> None:
        while not self._end.wait(self.every):
            try:
                self._mark("RUNNING")
            except OSError:  # a full disk is for the training thread to report
                continue
