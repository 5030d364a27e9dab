"""Another process of a run speaks for the first one only when that is gone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

from chimera.rundir.directory import RunDir
from chimera.rundir.rank_failover import first_is_gone, mark_ended, mark_failed


def test_the_first_process_is_gone_when_it_has_ended(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    code = (
        "import sys; from pathlib import Path; from chimera.rundir.directory import RunDir;"
        " RunDir(Path(sys.argv[1])).write_status('RUNNING', step=4)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    assert first_is_gone(run)  # and nobody waits until its heartbeat is old
    mark_failed(run, "the first process was ended")
    status = json.loads((tmp_path / "status.json").read_text())
    assert (status["state"], status["step"]) == ("FAILED", 4)
    assert not first_is_gone(run)  # somebody has said so
    run.write_status("DONE")
    assert not first_is_gone(run)


def test_the_first_process_is_gone_when_its_heart_has_stopped(tmp_path: Path) -> None:
    run, end = RunDir(tmp_path), threading.Event()
    run.write_status("RUNNING", step=3)  # by this process, which lives

    def beat() -> None:
        while not end.wait(0.05):
            run.write_status("RUNNING", step=3)

    heart = threading.Thread(target=beat)
    heart.start()
    try:
        assert not first_is_gone(run, silence=2.0)
    finally:
        end.set()
        heart.join()
    assert first_is_gone(run, silence=0.5)


def test_a_parent_marks_a_run_of_its_own_processes_only(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.write_status("RUNNING", step=3)
    mark_ended(run, [os.getpid() + 1], "they were ended")
    assert run.status()["state"] == "RUNNING"
    mark_ended(run, [os.getpid()], "they were ended")
    assert (run.status()["state"], run.status()["why"]) == ("FAILED", "they were ended")
    run.write_status("DONE")
    mark_ended(run, [os.getpid()], "they were ended")
    assert run.status()["state"] == "DONE"
