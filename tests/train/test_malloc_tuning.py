"""Memory that a step frees stays with the process."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from typing import Any

import pytest

from chimera.train.malloc_tuning import OWN, keep_freed_memory

#: Faults of pages while 8 MB are taken, filled and freed 50 times, after 16 MB were once freed.
PROGRAM = """
import resource
from chimera.train.malloc_tuning import keep_freed_memory
import numpy
assert keep_freed_memory()
numpy.ones(4 << 20)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    several = [numpy.ones(1 << 20) for _ in range(4)]
    del several
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries lack mallopt")
def test_a_step_finds_the_memory_that_the_last_one_freed() -> None:
    plain = {k: v for k, v in os.environ.items() if k not in (*OWN, "GLIBC_TUNABLES")}
    program = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(program, check=True, capture_output=True, text=True, env=plain)
    pages = 4 * 8 * (1 << 20) // 4096
    assert int(done.stdout) < 2 * pages  # once, not 50 times


@pytest.mark.parametrize("name", [*OWN, "GLIBC_TUNABLES"])
def test_what_the_user_set_stays(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("looked for the C library")

    monkeypatch.setenv(name, "glibc.malloc.trim_threshold=1")
    monkeypatch.setattr("ctypes.CDLL", refuse)
    assert not keep_freed_memory()
