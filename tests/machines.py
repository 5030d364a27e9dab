"""`python -m tests.machines`: run tests as other machines would, and print what fails.

oneDNN and ATen choose their kernels by the processor's instruction sets. Each of them can be told
to use fewer, which gives the last bits of another make of processor. There are three levels: all
instruction sets, AVX2, and none beyond SSE4.1. A row of the table is one run of the tests.

    python -m tests.machines tests/ops tests/quant          # 9 levels, 1 and 2 threads
    python -m tests.machines --level none --threads 1 tests # both libraries at this level
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

ROOT = Path(__file__).parents[1]
#: Levels of each library's variable; None leaves the choice to the processor.
ONEDNN = (None, "AVX2", "SSE41")
ATEN = (None, "avx2", "default")
LEVELS = dict(zip(("all", "avx2", "none"), zip(ONEDNN, ATEN, strict=True), strict=True))
THREADS = (1, 2)
VERSION = "import platform; print(platform.python_version())"
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


def main() -> int:
    """Print the table; return 1 if a test fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.machines", description=__doc__)
    parser.add_argument("--python", action="append", help="interpreter; may be given several times")
    parser.add_argument(
        "--level", action="append", choices=LEVELS, help="level of both libraries; likewise"
    )
    parser.add_argument("--threads", action="append", type=int, help="number of threads; likewise")
    parser.add_argument("--workers", default="2", help="pytest's -n")
    parser.add_argument("--marks", default="not slow", help="pytest's -m")
    parser.add_argument("tests", nargs="*", default=["tests"])
    options = parser.parse_args()
    levels = [LEVELS[name] for name in options.level or ()] or itertools.product(ONEDNN, ATEN)
    settings = list(itertools.product(levels, options.threads or THREADS))
    failed = False
    print("| Python | oneDNN | ATen | threads | seconds | passed | failing tests |")
    print("| --- | --- | --- | --- | --- | --- | --- |", flush=True)
    for python in options.python or [sys.executable]:
        version = subprocess.check_output([python, "-c", VERSION], text=True).strip()
        for (onednn, aten), threads in settings:
            began = time.monotonic()
            passed, names = run(python, onednn, aten, threads, options)
            seconds = f"{time.monotonic() - began:.0f}"
            row = (version, onednn or "all", aten or "all", str(threads), seconds, passed)
            print(f"| {' | '.join([*row, '<br>'.join(names)])} |", flush=True)
            failed |= bool(names)
    return int(failed)


def run(
    python: str, onednn: str | None, aten: str | None, threads: int, options: argparse.Namespace
) -> tuple[str, list[str]]:
    """Run the tests once; return the number that passed and the names of those that failed."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "TEST_THREADS": str(threads)}
    environment["PYTHONPATH"] = f"{ROOT / 'src'}{os.pathsep}{ROOT}"
    environment |= {"ONEDNN_MAX_CPU_ISA": onednn} if onednn else {}
    environment |= {"ATEN_CPU_CAPABILITY": aten} if aten else {}
    command = [python, "-m", "pytest", "-n", options.workers, "-m", options.marks]
    done = subprocess.run(
        [*command, "-p", "no:warnings", "-rfE", "--tb=no", *options.tests],
        env=environment,
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    names = FAILED.findall(done.stdout)
    if done.returncode and not names:  # pytest ended before it ran a test
        names = [(done.stdout + done.stderr).strip().splitlines()[-1]]
    passed = re.findall(r"(\d+) passed", done.stdout)
    return (passed[0] if passed else "0"), names


if __name__ == "__main__":
    sys.exit(main())
