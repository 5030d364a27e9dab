"""status.json kept fresh while a run is at work, so that others see that, and how far, it is."""

from __future__ import annotations

import threading
from datetime import UTC, datetime

from chimera.callback.log.steps import Step
from chimera.rundir.directory import HEARTBEAT, RunDir


class Heartbeat:
    """A thread that writes the state every few seconds. Listens to steps, which costs nothing.

    Args:
        directory: of the run.
        step: optimiser steps already taken.
        max_steps: of the run.
        every: seconds.
    """

    def __init__(
        self, directory: RunDir, step: int, max_steps: int, every: float = HEARTBEAT
    ) -> None:
        self.directory, self.every = directory, every
        self.known: dict[str, object] = {
            "started": datetime.now(UTC).isoformat(),
            "step": step,
            "max_steps": max_steps,
            "loss": None,
        }
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Write now, and then as long as the process lives."""
        self.directory.mark("RUNNING", **self.known)
        self._thread.start()

    def __call__(self, step: Step) -> None:
        self.known = {**self.known, "step": step.global_step, "loss": step.loss}

    def stop(self, state: str, **more: object) -> None:
        """The last word on this run."""
        self._end.set()
        if self._thread.is_alive():
            self._thread.join()
        self.directory.mark(state, **self.known, **more)

    def _beat(self) -> None:
        while not self._end.wait(self.every):
            try:
                self.directory.mark("RUNNING", **self.known)
            except OSError:  # a full disk is for the training thread to report
                continue
