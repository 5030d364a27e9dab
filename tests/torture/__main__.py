"""Run torture tests: `python -m tests.torture [R1 R2 …]`; exits with 1 if a case fails."""

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

#: Tests: functions of a folder to work in that return (number of passed cases, number of cases).
TESTS = {
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
    """Run the chosen tests, or all; print the results; return the exit code."""
    unknown = set(chosen) - set(TESTS)
    if unknown:
        print(f"error: {', '.join(sorted(unknown))} is no test; choose of {', '.join(TESTS)}")
        return 2
    results = {}
    for name in chosen or TESTS:
        module, _, function = TESTS[name].partition(".")
        count = getattr(importlib.import_module(f"tests.torture.{module}"), function)
        start = time.perf_counter()
        with tempfile.TemporaryDirectory(prefix="torture-") as folder:
            good, total = count(Path(folder))
        seconds = round(time.perf_counter() - start)
        results[name] = {"good": good, "of": total, "seconds": seconds}
        print(f"{name}  {good} of {total}, {seconds} s", flush=True)
    machine = f"{platform.platform()}, {os.cpu_count()} CPUs"
    print(json.dumps({"machine": machine, "git": git_state(), **results}))
    return int(any(r["good"] != r["of"] for r in results.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
