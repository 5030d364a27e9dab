"""`python -m tests.torture [R1 R2 …]` prints how often each promise held; exits 1 if one broke."""

from __future__ import annotations

import importlib
import json
import os
import platform
import sys
import tempfile
import time
from pathlib import Path

from chimera.rundir.environment import git_state

#: Which function counts a promise: `(good, all)` from a folder to work in.
PROMISES = {
    "R1": "resume.r1",
    "R2": "resume.r2",
    "R3": "corruption.r3",
    "R4": "nan.r4",
    "disk": "limits.count",
    "R5": "bad_config.r5",
    "R6": "sweep.r6",
    "R11": "overhead.r11",
}


def main(chosen: list[str]) -> int:
    """Run the chosen promises, all without any."""
    unknown = set(chosen) - set(PROMISES)
    if unknown:
        print(f"error: {', '.join(sorted(unknown))}; there are {', '.join(PROMISES)}")
        return 2
    results = {}
    for name in chosen or PROMISES:
        module, _, function = PROMISES[name].partition(".")
        count = getattr(importlib.import_module(f"tests.torture.{module}"), function)
        began = time.perf_counter()
        with tempfile.TemporaryDirectory(prefix="torture-") as folder:
            good, total = count(Path(folder))
        seconds = round(time.perf_counter() - began)
        results[name] = {"good": good, "of": total, "seconds": seconds}
        print(f"{name}  {good} of {total}, {seconds} s", flush=True)
    machine = f"{platform.platform()}, {os.cpu_count()} CPUs"
    print(json.dumps({"machine": machine, "git": git_state(), **results}))
    return int(any(r["good"] != r["of"] for r in results.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
