"""A closed terminal (SIGHUP) stops a sweep's jobs and a run's processes, saved, and leaves none."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.safety.kit import TEXT, line

LONG = ["trainer.max_steps=1000000", "trainer.val_check_interval=1000000"]
SWEEP = ["-m", "seed=0,1", "workers=2"]
TABLE = ["-m", "+bitnet_qdyt/norms=qdyt,layernorm", "workers=2"]
RANKS = ["trainer.devices=2", "trainer.timeout=30"]


def states(root: Path) -> dict[str, dict[str, str]]:
    """Contents of status.json by run."""
    return {f.parent.name: json.loads(f.read_text()) for f in root.glob("runs/*/status.json")}


def alive(root: Path) -> list[int]:
    """Processes with the folder in their command line."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = file.read_bytes()
        except OSError:  # it has ended
            continue
        if str(root).encode() in words and int(file.parent.name) != os.getpid():
            found.append(int(file.parent.name))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "runs"), [(SWEEP, 2), (TABLE, 2), (RANKS, 1)], ids=["sweep", "table", "ranks"]
)
def test_a_closed_terminal_stops_all_processes_saved(
    words: list[str], runs: int, tmp_path: Path
) -> None:
    (tmp_path / "text.txt").write_text(TEXT * 300)
    command = [sys.executable, "-m", "chimera", "train", *words, *line(tmp_path, *LONG)]
    environment = {**os.environ, "CHIMERA_RUNS": f"{tmp_path}/runs", "OMP_NUM_THREADS": "1"}
    with (tmp_path / "said").open("wb") as said:
        driver = subprocess.Popen(
            command, env=environment, stdout=said, stderr=said, start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
        )  # fmt: skip
    deadline = time.monotonic() + 240
    while [state.get("step", 0) > 2 for state in states(tmp_path).values()].count(True) < runs:
        assert driver.poll() is None, (tmp_path / "said").read_text()
        assert time.monotonic() < deadline, states(tmp_path)
        time.sleep(0.1)
    driver.send_signal(signal.SIGHUP)
    code = driver.wait(120)
    assert code == 130, (tmp_path / "said").read_text()
    assert not alive(tmp_path)
    found = states(tmp_path)
    assert [state["state"] for state in found.values()] == ["STOPPED"] * runs, found
    assert len(list(tmp_path.glob("runs/*/checkpoints/last.ckpt"))) == runs
