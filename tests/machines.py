"""`python -m tests.machines`: run tests as other machines would, and print what fails.

oneDNN and ATen choose their kernels by the processor's instruction sets. Both can be told to use
fewer, which gives the last bits of another make of processor. Every combination of three levels of
each runs with one thread and with two, for each Python given.

    python -m tests.machines tests/ops tests/quant            # this Python
    python -m tests.machines --python .venv/bin/python --python /path/to/python3.13 tests
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import subprocess
import sys
import time
from pathlib import Path

#: What each library is told; None leaves it to the processor.
ONEDNN = (None, "AVX2", "SSE41")
ATEN = (None, "avx2", "default")
THREADS = (1, 2)
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


def main() -> int:
    """Returns 1 if anything fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.machines", description=__doc__)
    parser.add_argument("--python", action="append", help="interpreter; several are fine")
    parser.add_argument("--workers", default="2", help="pytest's -n")
    parser.add_argument("--marks", default="not slow", help="pytest's -m")
    parser.add_argument("tests", nargs="*", default=["tests"])
    options = parser.parse_args()
    failed = False
    print("| Python | oneDNN | ATen | threads | seconds | passed | failing tests |")
    print("| --- | --- | --- | --- | --- | --- | --- |", flush=True)
    for python in options.python or [sys.executable]:
        for onednn, aten, threads in itertools.product(ONEDNN, ATEN, THREADS):
            environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
            environment["TEST_THREADS"] = str(threads)
            environment |= {"ONEDNN_MAX_CPU_ISA": onednn} if onednn else {}
            environment |= {"ATEN_CPU_CAPABILITY": aten} if aten else {}
            began = time.monotonic()
            command = [python, "-m", "pytest", "-q", "-n", options.workers, "-m", options.marks]
            done = subprocess.run(
                [*command, "-p", "no:warnings", "-rfE", "--tb=no", *options.tests],
                env=environment,
                capture_output=True,
                text=True,
                cwd=Path(__file__).parents[1],
            )
            names = FAILED.findall(done.stdout)
            if done.returncode and not names:  # it broke before it ran a test
                names = [(done.stdout + done.stderr).strip().splitlines()[-1]]
            passed = re.findall(r"(\d+) passed", done.stdout)
            failed |= bool(names)
            row = (
                Path(python).resolve().name,
                onednn or "all",
                aten or "all",
                str(threads),
                f"{time.monotonic() - began:.0f}",
                passed[0] if passed else "0",
                "<br>".join(names),
            )
            print(f"| {' | '.join(row)} |", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
