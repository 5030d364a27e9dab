"""What status.json says at a run's end, and what the user is told."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chimera.callback.log.steps import Steps
from chimera.errors import UserError
from chimera.rundir.directory import RunDir
from chimera.safe_io import write_json
from chimera.train.status import run_status


def ending(folder: Path, error: BaseException, before: Callable[[], Any] = lambda: None) -> None:
    """A run that an error ends."""
    folder.mkdir()
    write_json(folder / "config.yaml", {})
    ranks: Any = SimpleNamespace(first=True, timeout=1.0)
    with run_status(ranks, RunDir(folder), [Steps()], 3, 10):
        before()
        raise error


def test_a_run_whose_directory_is_gone_is_one_line(tmp_path: Path) -> None:
    run = tmp_path / "run"
    gone = FileNotFoundError(2, "No such file or directory", str(run / "steps.csv"))
    with pytest.raises(UserError, match="run was renamed or removed while the run trained there"):
        ending(run, gone, lambda: os.rename(run, tmp_path / "other"))
    assert not run.exists()


@pytest.mark.parametrize(
    ("error", "state"), [(KeyboardInterrupt(), "STOPPED"), (ValueError("x"), "FAILED")]
)
def test_ctrl_c_stops_and_an_error_fails(error: BaseException, state: str, tmp_path: Path) -> None:
    with pytest.raises(type(error)):
        ending(tmp_path / "run", error)
    status = RunDir(tmp_path / "run").status()
    assert (status["state"], status["step"]) == (state, 3)
