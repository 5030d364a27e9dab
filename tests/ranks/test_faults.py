"""A fault in one of two processes ends or skips on both, saved; the next start goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from chimera.rundir.directory import RunDir
from tests.ranks import faults
from tests.ranks.equality import together
from tests.ranks.faults import losses
from tests.torture import job


def command(folder: Path, to: Path, kind: str, rank: int, *more: str) -> list[str]:
    """A command line of a run with a fault in a process."""
    words = faults.fault_words(kind, rank, 4, folder / f"{to.name}.marker")
    words += [*faults.TWO, *more]
    line = job.arguments(folder / "text", to, *words, "trainer.max_steps=6", "trainer.devices=1")
    return ["train.py", *line]


@pytest.mark.slow
def test_a_killed_process_ends_the_other_which_saves(tmp_path: Path) -> None:
    line = command(tmp_path, tmp_path / "run", "kill", 1)
    first, second = together(2, *line)
    assert second.returncode == -9
    assert first.returncode == 1
    error = [text for text in first.stderr.splitlines() if text.startswith("error:")]
    assert error == [
        "error: process 0 of 2 stopped: another process has ended; start the same command again to"
        " resume from the last checkpoint"
    ]
    status = json.loads((tmp_path / "run/status.json").read_text())
    assert status["state"] == "FAILED"
    assert "another process has ended" in status["why"]
    assert [one.returncode for one in together(2, *line)] == [0, 0]
    assert len(losses(tmp_path / "run")) == 6


def test_a_loss_of_nan_in_one_process_stops_both_with_a_report_of_each(tmp_path: Path) -> None:
    line = command(tmp_path, tmp_path / "run", "poison", 1)
    found = together(2, *line)
    assert [one.returncode for one in found] == [1, 1]
    errors = [t for one in found for t in one.stderr.splitlines() if t.startswith("error:")]
    assert len(errors) == 1  # one of them speaks
    reports = [json.loads(p.read_text()) for p in sorted(tmp_path.glob("run/nan_report-5*.json"))]
    assert [report["random"]["rank"] for report in reports] == [1, 0]  # -rank1.json, .json
    assert [report["at_fault"] for report in reports] == [[1], [1]]
    assert reports[0]["what"] == "loss of micro-batch 0 is nan"
    shares = [set(report["indices"][0]) for report in reports]
    assert not shares[0] & shares[1]


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize("kind", faults.KINDS)
def test_a_fault_ends_in_seconds_and_the_next_start_goes_on(
    kind: str, strategy: str, tmp_path: Path
) -> None:
    got = faults.outcome(tmp_path, kind, 0 if kind == "full" else 1, strategy)
    assert got.same, got
    assert got.state == {"term": "STOPPED", "skip": "DONE"}.get(kind, "FAILED")
    assert got.code == {"kill": 137, "term": 130, "skip": 0, "full": 2}.get(kind, 1)


@pytest.mark.slow
def test_the_processes_of_a_killed_command_save_and_end(tmp_path: Path) -> None:
    to = tmp_path / "run"
    line = job.arguments(tmp_path / "text", to, *faults.TWO, "trainer.max_steps=4000")
    environment = {**os.environ, "PYTHONPATH": f"{faults.ROOT}/src", "OMP_NUM_THREADS": "1"}
    parent = subprocess.Popen(
        [sys.executable, str(faults.ROOT / "train.py"), *line], env=environment
    )
    until(lambda: (to / "steps.csv").exists() and len(losses(to)) > 2)
    parent.kill()
    parent.wait()
    until(lambda: faults.read(to / "status.json")["state"] == "STOPPED")
    until(lambda: not RunDir(to).is_running())


def until(true: Callable[[], bool], patience: float = 120.0) -> None:
    """Wait until it is true."""
    end = time.monotonic() + patience
    while not true():
        assert time.monotonic() < end
        time.sleep(0.1)
