"""Run torture tests: `python -m tests.torture [resume nan …]`; exits with 1 if a case fails."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.torture import corruption, limits, nan, resume, sweep

#: A promise's cases: functions of a folder to work in that return what did not hold.
PROMISES: dict[str, dict[str, Callable[[Path], list[str]]]] = {
    "resume": resume.CASES,
    "corruption": corruption.CASES,
    "nan": nan.CASES,
    "limits": limits.CASES,
    "sweep": sweep.CASES,
}


def main(chosen: list[str]) -> int:
    """Run the chosen promises' cases, or all; print how often each held; return the exit code."""
    if unknown := set(chosen) - set(PROMISES):
        print(f"error: no promise {', '.join(unknown)}; choose of {', '.join(PROMISES)}")
        return 2
    broken = 0
    for promise in chosen or PROMISES:
        start, failed = time.perf_counter(), 0
        with tempfile.TemporaryDirectory(prefix="torture-") as folder:
            for name, case in PROMISES[promise].items():
                wrong = case(Path(folder))
                failed += bool(wrong)
                print(f"{promise}: {name}: {'; '.join(wrong) or 'held'}", flush=True)
        count, seconds = len(PROMISES[promise]), time.perf_counter() - start
        print(f"{promise}: held in {count - failed} of {count}, {seconds:.0f} s", flush=True)
        broken += failed
    return int(broken > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
