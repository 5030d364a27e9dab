"""`python -m tests.machines`: run tests as other machines would, and print what fails.

oneDNN and ATen choose their kernels by the processor's instruction sets. Each of them can be told
to use fewer, which gives the last bits of another make of processor. There are three levels: all
instruction sets, AVX2, and none beyond SSE4.1. A row of the table is one run of the tests.

    python -m tests.machines tests/ops tests/quant          # 9 levels, 1 and 2 threads
    python -m tests.machines --level none --threads 1 tests # both libraries at this level
    python -m tests.machines --python .venv/bin/python --python /path/to/python3.13 tests
    python -m tests.machines --pairs --python … --python … tests   # fewer: see `pairs`
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from chimera.rundir.environment import first_core, git_state

ROOT = Path(__file__).parents[1]
#: Levels of each library's variable; None leaves the choice to the processor.
ONEDNN = (None, "AVX2", "SSE41")
ATEN = (None, "avx2", "default")
LEVELS = dict(zip(("all", "avx2", "none"), zip(ONEDNN, ATEN, strict=True), strict=True))
THREADS = (1, 2)
VERSION = "import platform; print(platform.python_version())"
#: Levels of oneDNN and of ATen, number of threads, interpreter.
Setting = tuple[str | None, str | None, int, str]
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


def main() -> int:
    """Print the table; return 1 if a test fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.machines", description=__doc__)
    parser.add_argument("--python", action="append", help="interpreter; may be given several times")
    parser.add_argument(
        "--level", action="append", choices=LEVELS, help="level of both libraries; likewise"
    )
    parser.add_argument("--threads", action="append", type=int, help="number of threads; likewise")
    parser.add_argument("--pairs", action="store_true", help="each pair of two settings only once")
    parser.add_argument("--workers", default="2", help="pytest's -n")
    parser.add_argument("--marks", default="not slow", help="pytest's -m")
    parser.add_argument("tests", nargs="*", default=["tests"])
    options = parser.parse_args()
    pythons = options.python or [sys.executable]
    levels = [LEVELS[name] for name in options.level or ()] or itertools.product(ONEDNN, ATEN)
    everything = itertools.product(levels, options.threads or THREADS, pythons)
    chosen = pairs(pythons) if options.pairs else ((*level, n, p) for level, n, p in everything)
    return table(chosen, options)


def pairs(pythons: Sequence[str]) -> Iterator[Setting]:
    """Settings in which every two of level, number of threads and Python meet at least once.

    Those in which the two libraries have different levels come once each.
    """
    for i, level in enumerate(LEVELS.values()):
        for j, python in enumerate(pythons):
            yield *level, THREADS[(i + j) % len(THREADS)], python
    mixed = [levels for levels in itertools.product(ONEDNN, ATEN) if levels not in LEVELS.values()]
    for i, level in enumerate(mixed):
        yield *level, THREADS[i % len(THREADS)], pythons[i % len(pythons)]


def table(settings: Iterable[Setting], options: argparse.Namespace) -> int:
    """Run the tests in each setting and print a row for each; return 1 if a test fails."""
    state = git_state()
    commit = str(state.get("commit", "unknown"))[:12] + " changed" * bool(state.get("changed"))
    cpu = first_core().get("model name", "an unknown processor")
    print(f"Commit {commit}, {cpu}, tests: {' '.join(options.tests)}\n")
    print("| Python | oneDNN | ATen | threads | seconds | passed | failing tests |")
    print("| --- | --- | --- | --- | --- | --- | --- |", flush=True)
    failed = False
    for onednn, aten, threads, python in settings:
        version = subprocess.check_output([python, "-c", VERSION], text=True).strip()
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
