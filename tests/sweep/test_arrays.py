"""Jobs of a sweep are one job array, a refusal is one line; Slurm's commands are scripts here."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from chimera.errors import UserError
from chimera.sweep import slurm
from chimera.sweep.job import State
from chimera.sweep.local import Handle, Start
from tests.sweep.kit import Scripts, job, run

#: The n-th call of sbatch keeps its script as `call-n` and answers with job 10·n.
ACCEPT = 'n=$(ls {calls} | wc -l); cp "$1" {calls}/call-$n; echo "Submitted batch job $((n + 1))0"'
REFUSE = "echo 'sbatch: error: invalid partition specified: nope' >&2; exit 1"


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of the scripts that sbatch was called with."""
    calls = tmp_path / "calls"
    calls.mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    for name in ("srun", "squeue", "scancel", "scontrol"):
        _command(tmp_path, name, f'echo {name} "$@" >> {tmp_path}/said')
    _command(tmp_path, "sbatch", ACCEPT.format(calls=calls))
    monkeypatch.setattr(slurm, "EVERY", 0.0)
    slurm._largest_array.cache_clear()
    return calls


def _command(folder: Path, name: str, script: str) -> None:
    path = folder / "bin" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def _starts(folder: Path, *names: str, gpu: bool = False) -> list[Start]:
    for name in names:
        (folder / "runs" / name).mkdir(parents=True, exist_ok=True)
    return [Start(("nothing=1",), folder / "runs" / n / "log.txt", gpu=gpu) for n in names]


def _job(handle: Handle | UserError) -> slurm.SlurmJob:
    assert isinstance(handle, slurm.SlurmJob)
    return handle


def test_jobs_that_start_together_are_one_array(calls: Path, tmp_path: Path) -> None:
    launcher = slurm.Submitit(cpus=1, at_once=2)
    jobs = [_job(handle) for handle in launcher.start(_starts(tmp_path, "a", "b", "c"))]
    assert [each.where for each in jobs] == ["job 10_0", "job 10_1", "job 10_2"]
    (script,) = calls.iterdir()
    assert "#SBATCH --array=0-2%2\n" in script.read_text()
    launcher.interrupt(jobs)
    assert "scancel 10_0 10_1 10_2\n" in (tmp_path / "said").read_text()


def test_arrays_share_the_number_of_jobs_at_once(calls: Path, tmp_path: Path) -> None:
    launcher = slurm.Submitit(at_once=3, queued=5)
    first = [_job(handle) for handle in launcher.start(_starts(tmp_path, "a", "b", "c", "d"))]
    assert launcher.room(0, unfinished=4) == 0  # three of them run
    for each in first[:3]:
        each.over = True
    assert launcher.room(0, unfinished=1) == 4
    launcher.start(_starts(tmp_path, *"efgh"))
    assert "#SBATCH --array=0-3%2\n" in (calls / "call-1").read_text()
    assert launcher.room(0, unfinished=5) == 0
    _command(tmp_path, "scontrol", "echo 'MaxArraySize            = 3'")
    assert slurm.Submitit().room(0, unfinished=0) == 1000  # the answer is kept
    slurm._largest_array.cache_clear()
    assert slurm.Submitit().room(0, unfinished=0) == 3


def test_a_job_in_the_queue_is_not_submitted_again(calls: Path, tmp_path: Path) -> None:
    slurm.Submitit().start(_starts(tmp_path, "a", "b"))
    _command(tmp_path, "squeue", "echo '10_1 RUNNING None'")
    slurm.QUEUE._read = -1.0
    again = slurm.Submitit(at_once=1)
    jobs = [_job(handle) for handle in again.start(_starts(tmp_path, "b"))]
    assert [each.where for each in jobs] == ["job 10_1"]
    assert len(list(calls.iterdir())) == 1
    assert again.room(0, unfinished=1) == 0


def test_a_refusal_has_the_words_of_sbatch(
    calls: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _command(tmp_path, "sbatch", REFUSE)
    for handle in slurm.Submitit().start(_starts(tmp_path, "a", "b")):
        assert str(handle) == "Slurm refused the job: invalid partition specified: nope"
    (unknown,) = slurm.Submitit(parameters={"slurm_bad": 1}).start(_starts(tmp_path, "a"))
    assert "slurm_bad" in str(unknown)
    assert "\n" not in str(unknown)
    assert list((tmp_path / "runs" / ".slurm").iterdir()) == []
    assert capsys.readouterr().err == ""


def test_each_task_may_use_a_gpu_and_processes_share_the_cores(
    calls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm, "output", lambda *command: "gpu:8" if "sinfo" in command else "")
    (start,) = _starts(tmp_path, "a", gpu=True)
    slurm.Submitit(tasks_per_node=4).start([start])
    assert "#SBATCH --gpus-per-node=4\n" in (calls / "call-0").read_text()
    assert slurm.Submitit(cpus=8)._command(start).cpus == 8
    own = Start(start.overrides, start.log, devices=2)  # processes that the run starts itself
    assert slurm.Submitit(cpus=8)._command(own).cpus == 4
    assert slurm.Submitit(cpus=8, nodes=2)._command(own).cpus == 8


def test_a_job_that_can_never_run_is_named(
    calls: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (handle,) = slurm.Submitit().start(_starts(tmp_path, "a"))
    _command(tmp_path, "squeue", "echo '10 PENDING PartitionNodeLimit'")
    slurm.QUEUE._read = -1.0
    assert [_job(handle).poll(), _job(handle).poll()] == [None, None]
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "job 10 may wait for ever, Slurm says PartitionNodeLimit"


class Refusing(Scripts):
    """Launcher that refuses the jobs whose script is empty."""

    def start(self, starts: Sequence[Start]) -> list[Handle | UserError]:  # type: ignore[override]
        no = UserError("refused: no such partition")
        return [self._start(start) if start.overrides[0] else no for start in starts]


def test_a_refused_sweep_is_an_error_that_leaves_no_run(tmp_path: Path) -> None:
    earlier = tmp_path / "b" / "log.txt"
    earlier.parent.mkdir()
    earlier.write_text("earlier\n")
    with pytest.raises(UserError, match="no such partition"):
        run([job(tmp_path, "a"), job(tmp_path, "b")], Refusing())
    assert not (tmp_path / "a").exists()
    assert earlier.read_text() == "earlier\n"


def test_a_refused_job_stops_no_other(tmp_path: Path) -> None:
    work = run([job(tmp_path, "a"), job(tmp_path, "b", "pass")], Refusing())
    assert (work["a"].state, work["b"].state) == (State.FAILED, State.DONE)
    assert work["a"].why == "refused: no such partition"
