"""Other programs on this process's cores, which cost a step of several threads most.

Threads of OpenMP wait for one another at the end of every operation. Where another program takes
the core of one of them, all wait for it: beside one busy process, two threads on two cores are
slower than one (docs/speed.md). Lowering the number of threads by itself would change last bits of
the losses, so a run only says so.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch

STAT = Path("/proc/stat")
#: Seconds that are enough to judge by, and the busy cores of others from which on a run says so.
ENOUGH, NOTICED = 0.1, 0.5


def hint(threads: int, cores: int, busy: float) -> str | None:
    """The line that a run prints; None if there is room for its threads.

    Args:
        threads: of this process.
        cores: that this process may use.
        busy: cores of these that other programs use.
    """
    room = max(1, round(cores - busy))
    if threads <= room or busy < NOTICED:
        return None
    return (
        f"other programs use {busy:.1f} of {cores} cores: {threads} threads wait for them at every"
        f" operation; trainer.threads={room} may be several times faster"
    )


class Neighbours:
    """What other programs do on the cores of this process, from its making on."""

    def __init__(self) -> None:
        self._began, self._before = time.monotonic(), self._others()

    def hint(self) -> str | None:
        """See `hint`; None where the kernel does not count, after too little time, with a GPU."""
        if torch.cuda.is_available():
            return None
        now, passed = self._others(), time.monotonic() - self._began
        if now is None or self._before is None or passed < ENOUGH:
            return None
        cores = len(os.sched_getaffinity(0))
        return hint(torch.get_num_threads(), cores, (now - self._before) / passed)

    def _others(self) -> float | None:
        """Seconds of others since the machine started; those of own processes are not theirs."""
        try:
            return _worked(os.sched_getaffinity(0)) - sum(os.times()[:4])
        except (AttributeError, OSError, ValueError):  # not Linux
            return None


def _worked(cores: set[int]) -> float:
    """Seconds that these cores have worked since the machine started."""
    total = 0
    for line in STAT.read_text().splitlines():
        name, *times = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in cores:
            user, nice, system, _, _, irq, softirq, *_ = map(int, times)
            total += user + nice + system + irq + softirq
    return total / os.sysconf("SC_CLK_TCK")
