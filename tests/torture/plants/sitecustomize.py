"""Plant faults into the jobs of a sweep. This folder has to be on PYTHONPATH.

`CHIMERA_FAULTS` is a folder of files `<argument of a job's command line>` with the contents
`raise`, `exit` or `kill`. A job with this argument does so at its second checkpoint. It removes the
file before, so that the fault happens once.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any


def arm(fault: Path) -> None:
    """Cause the fault when the second checkpoint of this process gets its name."""
    renamed = 0

    def hook(event: str, args: tuple[Any, ...]) -> None:
        nonlocal renamed
        if event != "os.rename" or not str(args[1]).endswith(".ckpt") or not fault.exists():
            return
        renamed += 1
        if renamed == 2:
            action = fault.read_text()
            fault.unlink()
            if action == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if action == "exit":
                sys.exit(3)
            raise RuntimeError("planted")

    sys.addaudithook(hook)


def plant(arguments: list[str]) -> None:
    """Arm the faults of this command line if it is a job; the sweep's process has none."""
    folder = os.environ.get("CHIMERA_FAULTS")
    job = ["-m", "chimera", "train"]  # chimera.program.job
    starts = [i for i in range(len(arguments)) if arguments[i : i + len(job)] == job]
    if folder and starts:
        for argument in arguments[starts[0] + len(job) :]:
            fault = Path(folder) / argument.replace("/", ":")
            if "=" in argument and fault.exists():
                arm(fault)


plant(sys.orig_argv)
