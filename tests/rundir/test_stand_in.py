"""The second process of a run speaks for the first one only when that has ended."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from chimera.rundir.directory import RunDir
from chimera.rundir.stand_in import first_is_gone, mark_failed


def test_the_first_process_is_gone_when_it_has_ended(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.write_status("RUNNING", step=3)  # by this process
    assert not first_is_gone(run, patience=0.1)
    code = (
        "import sys; from pathlib import Path; from chimera.rundir.directory import RunDir;"
        " RunDir(Path(sys.argv[1])).write_status('RUNNING', step=4)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    assert first_is_gone(run, patience=0.1)
    mark_failed(run, "the first process was ended")
    status = json.loads((tmp_path / "status.json").read_text())
    assert (status["state"], status["step"]) == ("FAILED", 4)
    assert not first_is_gone(run, patience=0.1)  # somebody has said so
    run.write_status("DONE")
    assert not first_is_gone(run, patience=0.1)
