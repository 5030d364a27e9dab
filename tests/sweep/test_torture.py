"""Fast subsets of the torture tests R5 and R6; `make torture` runs all of both."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests import forks
from tests.torture import bad_config, sweep

#: One per stage of the checks.
SOME = [case for case in bad_config.BAD if case[0].startswith(("optm", "mixer=retnet pos", "-m s"))]


@pytest.mark.parametrize(("arguments", "parts"), SOME, ids=[arguments for arguments, _ in SOME])
def test_bad_arguments_are_refused(arguments: str, parts: list[str], tmp_path: Path) -> None:
    # R5 has new processes and a limit of time.
    failures, _ = bad_config.refused(arguments, parts, tmp_path, forked)
    assert not [failure for failure in failures if not failure.endswith(" s")]


def forked(
    words: Sequence[str], here: Path, env: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    return forks.run(*words, cwd=here, env=env)


# It starts five processes; tests/sweep/test_engine.py has the same with light jobs.
@pytest.mark.slow
def test_a_killed_job_stops_no_other_and_a_second_sweep_resumes_it(tmp_path: Path) -> None:
    arguments = [
        "seed=0,1",
        *sweep.OVERRIDES[0:1],
        *sweep.OVERRIDES[2:],
        "model.dim=32",
        "model.depth=1",
    ]
    sweep.plant(tmp_path, {"seed=1": "kill"})
    first = sweep.sweep(tmp_path, arguments)
    assert first.returncode == 1
    assert "failed: seed=1: killed by SIGKILL" in first.stderr
    assert sorted(sweep.states(tmp_path).values()) == ["DONE", "RUNNING"]
    assert sweep.attempts(tmp_path) == 2
    assert sweep.sweep(tmp_path, arguments).returncode == 0
    assert list(sweep.states(tmp_path).values()) == ["DONE", "DONE"]
    assert sweep.attempts(tmp_path) == 3


@pytest.mark.slow
def test_r6(tmp_path: Path) -> None:
    passed, total = sweep.r6(tmp_path)
    assert passed == total
