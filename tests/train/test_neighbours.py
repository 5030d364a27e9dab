"""A run says that other programs take its cores, and only then."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from chimera.train import neighbours


@pytest.mark.parametrize(
    ("threads", "cores", "busy", "advice"),
    [
        (2, 2, 1.0, "trainer.threads=1 "),
        (2, 2, 0.2, None),
        (1, 2, 2.0, None),
        (8, 8, 3.1, "trainer.threads=5 "),
        (4, 8, 3.1, None),
        (2, 2, 2.0, "trainer.threads=1 "),
    ],
)
def test_the_advice_leaves_the_cores_of_others(
    threads: int, cores: int, busy: float, advice: str | None
) -> None:
    line = neighbours.hint(threads, cores, busy)
    assert line is None if advice is None else line is not None and advice in line


def stat(path: Path, *busy: int) -> None:
    lines = [f"cpu{n} {each} 0 0 1000 5 0 0 0 0 0" for n, each in enumerate(busy)]
    path.write_text("\n".join([f"cpu {sum(busy)} 0 0 9 9 0 0 0 0 0", *lines, "intr 1 2"]))


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file in place of /proc/stat, for a process of two threads on cores 0 and 2."""
    file = tmp_path / "stat"
    monkeypatch.setattr(neighbours, "STAT", file)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 2})
    monkeypatch.setattr(neighbours.torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(neighbours.time, "monotonic", iter((10.0, 11.0)).__next__)
    return file


@pytest.mark.parametrize(("own", "line"), [(0.0, "use 1.0 of 2 cores"), (0.9, None)])
def test_times_of_others_on_the_own_cores_are_counted(
    kernel: Path, monkeypatch: pytest.MonkeyPatch, own: float, line: str | None
) -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    used = iter(((1.0, 0.0, 0.0, 0.0, 0.0), (1.0, 0.0, own, 0.0, 0.0)))
    monkeypatch.setattr(os, "times", lambda: next(used))
    stat(kernel, 0, 0, 0)
    there = neighbours.Neighbours()
    stat(kernel, ticks, 5 * ticks, 0)
    found = there.hint()
    assert (found is None) if line is None else (found is not None and line in found)


def test_nothing_is_said_where_the_kernel_does_not_count(kernel: Path) -> None:
    assert neighbours.Neighbours().hint() is None


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc/stat")
def test_a_busy_process_is_seen() -> None:
    """On the real kernel: one core of the machine works for somebody else."""
    core = {min(os.sched_getaffinity(0))}
    busy = subprocess.Popen(
        [sys.executable, "-c", "print(1, flush=True)\nwhile True: pass"], stdout=subprocess.PIPE
    )
    try:
        os.sched_setaffinity(busy.pid, core)
        assert busy.stdout is not None
        busy.stdout.readline()
        before = neighbours._worked(core)
        time.sleep(0.5)
        assert neighbours._worked(core) - before > 0.1
    finally:
        busy.kill()
        busy.wait()
