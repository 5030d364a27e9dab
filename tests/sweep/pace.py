"""A callback that makes steps take some time, so that a fault finds the run in their middle."""

from __future__ import annotations

import time
from typing import Any

from lightning.pytorch import Callback

#: Seconds of a step; Slurm looks every thirty seconds for jobs near their limit.
PAUSE = 0.15


class Pace(Callback):
    """Sleeps after each step."""

    def on_before_zero_grad(self, *_: Any) -> None:
        time.sleep(PAUSE)
