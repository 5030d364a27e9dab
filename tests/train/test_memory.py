"""Too little memory ends in one line that says what to lower; what a step frees stays here."""

from __future__ import annotations

import errno
import os
import platform
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from chimera.errors import UserError
from chimera.paths import ROOT
from chimera.train.memory import (
    OWN,
    advice,
    allow_open_files,
    keep_freed_memory,
    lack_of_memory,
    readable_memory_errors,
)
from tests.data.kit import sentences
from tests.train import tiny

CONFIG = {
    "data": {"batch_size": 16, "seq_len": 128, "num_workers": 2},
    "model": {"gradient_checkpointing": False},
    "trainer": {"accumulate_grad_batches": 2},
}


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB. GPU 0 has 1 GiB"),
        RuntimeError("[enforce fail] . DefaultCPUAllocator: can't allocate memory: you tried …"),
        RuntimeError("std::bad_alloc"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        caused(
            RuntimeError("DataLoader worker (pid(s) 7) exited unexpectedly"),
            RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. "),
        ),
    ],
)
def test_every_way_to_run_out_of_memory_is_named(error: Exception) -> None:
    with pytest.raises(UserError) as told, readable_memory_errors(advice(CONFIG)):
        raise error
    line = str(told.value)
    assert line.startswith("out of memory: ")
    assert "data.batch_size=8 trainer.accumulate_grad_batches=4" in line
    assert "model.gradient_checkpointing=true" in line
    assert "data.seq_len=128" in line
    assert "\n" not in line


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("shapes cannot be multiplied"),
        RuntimeError("DataLoader worker (pid 7) is killed by signal: Aborted"),
        OSError(errno.ENOENT, "no file"),
    ],
)
def test_other_errors_stay(error: Exception) -> None:
    assert lack_of_memory(error) == ""
    with pytest.raises(type(error)) as raised, readable_memory_errors(advice(CONFIG)):
        raise error
    assert raised.value is error


@pytest.mark.slow
def test_a_run_beyond_its_limit_ends_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("\n\n".join(sentences(9000)))
    limit = 6 << 30

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

    line = [*tiny.LINE, "mixer=attention", "model.dim=512", "model.max_len=4096"]
    line += ["data.batch_size=2", "trainer.max_steps=1", f"run_dir={tmp_path / 'run'}"]
    line += ["trainer.accumulate_grad_batches=1", "model.depth=2", "model.heads=8"]
    line += ["position=alibi", "data.seq_len=4096", "trainer.threads=1"]
    ended = subprocess.run(
        [sys.executable, str(ROOT / "train.py"), *line],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        preexec_fn=limited,
        timeout=300,
    )
    assert ended.returncode == 2, ended.stderr
    last = ended.stderr.strip().splitlines()[-1]
    assert last.startswith("error: out of memory: ")
    assert "data.batch_size=1" in last
    assert "Traceback" not in ended.stderr
    assert tiny.state(tmp_path / "run") == "FAILED"


#: Faults of pages while 8 MB are taken, filled and freed 50 times, after 16 MB were once freed.
PROGRAM = """
import resource
from chimera.train.memory import keep_freed_memory
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


def test_few_open_files_are_refused_before_workers_start(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {"value": (40, 40)}
    monkeypatch.setattr("resource.getrlimit", lambda _: limits["value"])
    monkeypatch.setattr("resource.setrlimit", lambda _, to: limits.update(value=to))
    with pytest.raises(UserError, match="needs up to 128 open files, and `ulimit -n` is 40"):
        allow_open_files(2)
    limits["value"] = (40, 4096)
    allow_open_files(2)
    allow_open_files(0)
    assert limits["value"] == (128, 4096)
