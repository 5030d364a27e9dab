"""Faults for the jobs of a sweep: a folder on PYTHONPATH is all that plants them.

`CHIMERA_FAULTS` names a folder of files `<word of a job's command line>` that say `raise`, `exit`
or `kill`. The job that has the word does so in the middle of training, at its second checkpoint;
the file goes first, so that it happens once.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any


def arm(fault: Path) -> None:
    """Wait for the second checkpoint of this process to be named."""
    named = 0

    def hook(event: str, args: tuple[Any, ...]) -> None:
        nonlocal named
        if event != "os.rename" or not str(args[1]).endswith(".ckpt") or not fault.exists():
            return
        named += 1
        if named == 2:
            kind = fault.read_text()
            fault.unlink()
            if kind == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if kind == "exit":
                sys.exit(3)
            raise RuntimeError("planted")

    sys.addaudithook(hook)


def plant(words: list[str]) -> None:
    """Arm the faults of this command line; sweeps themselves have none."""
    folder = os.environ.get("CHIMERA_FAULTS")
    if folder and any(word.endswith("train.py") for word in words) and "-m" not in words:
        for word in words:
            fault = Path(folder) / word.replace("/", ":")
            if "=" in word and fault.exists():
                arm(fault)


plant(sys.orig_argv)
