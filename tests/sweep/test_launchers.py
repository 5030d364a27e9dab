"""Command, environment and log of a job's process, on this machine and with submitit."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from chimera.errors import UserError
from chimera.sweep import local, slurm


def wait(handle: local.Handle) -> int:
    deadline = time.monotonic() + 240  # of a busy machine
    while (code := handle.poll()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return code


def python(script: str) -> list[str]:
    return [sys.executable, "-c", script]


def test_the_command_of_a_job_is_a_single_run() -> None:
    # Lightning's strategies start sys.argv again; with -m that would be another sweep.
    command = local.command(["mixer=retnet", "seed=1"])
    assert command[0] == sys.executable
    assert command[-5:] == ["-m", "chimera", "train", "mixer=retnet", "seed=1"]


def test_cores_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    threads = [local.environment_of(0, n, None, 0)["OMP_NUM_THREADS"] for n in (1, 2, 3, 16)]
    assert threads == ["8", "4", "2", "1"]
    assert local.environment_of(0, 2, None, 0)["OMP_WAIT_POLICY"] == "PASSIVE"
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert local.environment_of(0, 2, None, 0)["OMP_NUM_THREADS"] == "3"
    assert local.environment_of(0, 2, 5, 0)["OMP_NUM_THREADS"] == "5"


def test_slots_take_the_gpus_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    devices = [local.environment_of(slot, 3, 1, 1)["CUDA_VISIBLE_DEVICES"] for slot in range(3)]
    assert devices == ["4", "6", "4"]
    for gpus in (0, 2):  # with none or several, a run sees all GPUs
        assert local.environment_of(1, 3, 1, gpus)["CUDA_VISIBLE_DEVICES"] == "4,6"


@pytest.mark.parametrize(
    ("script", "code"),
    [("pass", 0), ("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 9)", -9)],
)
def test_exit_codes(
    script: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "command", lambda overrides: python(overrides[0]))
    log = tmp_path / "log.txt"
    log.write_text("before\n")
    printing = f"print('printed', flush=True); {script}"
    (handle,) = local.Local(threads=1).start([local.Start((printing,), log)])
    assert isinstance(handle, local.LocalJob)
    assert wait(handle) == code
    assert log.read_text() == "before\nprinted\n"


def test_submitit_runs_the_same_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "command", lambda overrides: python(overrides[0]))
    launcher = slurm.Submitit(cluster="local", timeout_min=1)
    launcher.check()
    (tmp_path / "run").mkdir()
    log = tmp_path / "run" / "log.txt"
    # `Command` is pickled by reference, so the allocation runs the real command.
    (handle,) = launcher.start([local.Start(("nothing=1",), log)])
    (folder,) = (path for path in (tmp_path / ".slurm").iterdir() if path.is_dir())
    for private in (folder.parent, folder):
        assert private.stat().st_mode & 0o777 == 0o700  # pickles are code
    assert isinstance(handle, slurm.LocalAllocation)
    assert wait(handle) == 2
    assert log.read_text().startswith("error: nothing is no key")
    assert not (tmp_path / "run" / "submitit").exists()


def test_submitit_gets_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "output", lambda *_: "gpu:2")
    launcher = slurm.Submitit(partition="long", timeout_min=30, setup=["module load x"], grace=60)
    assert launcher._allocation(gpus=2) == {
        "name": "chimera",
        "timeout_min": 30,
        "cpus_per_task": 8,
        "gpus_per_node": 2,
        "slurm_setup": ["module load x"],
        "slurm_partition": "long",
        "slurm_signal_delay_s": 60,
        "slurm_array_parallelism": 1,
    }
    assert "gpus_per_node" not in slurm.Submitit(gpus=0)._allocation(gpus=2)


def test_no_gpu_is_asked_for_where_the_cluster_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for resources, gpus in (("(null)", None), ("gpu:h100:4", 2), (None, 2)):
        monkeypatch.setattr(slurm, "output", lambda *_, answer=resources: answer)
        assert slurm.Submitit()._allocation(gpus=2).get("gpus_per_node") == gpus
    assert slurm.Submitit(nodes=2, tasks_per_node=4)._allocation(0)["tasks_per_node"] == 4


def test_the_state_of_a_job_comes_from_squeue(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = slurm.Queue()
    monkeypatch.setattr(slurm, "EVERY", 0.0)
    monkeypatch.setattr(slurm, "output", lambda *_: "7 PENDING\n8 CANCELLED\n")
    assert [queue.state(job) for job in ("7", "8", "9")] == ["PENDING", "CANCELLED", ""]
    monkeypatch.setattr(slurm, "output", lambda *_: None)  # the controller does not answer
    assert queue.state("7") is None


def test_the_run_ignores_the_signal_of_the_time_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = "import os, signal; os.kill(os.getpid(), signal.SIGUSR2); print('alive')"
    monkeypatch.setattr(slurm, "command", lambda overrides: python(overrides[0]))
    log = tmp_path / "log.txt"
    assert slurm.Command((script,), log, 1, 1.0)() == 0
    assert log.read_text() == "alive\n"


def test_a_saved_run_waits_for_the_kill_and_leaves_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm, "command", lambda overrides: python(overrides[0]))
    left: list[int] = []
    monkeypatch.setattr(slurm.os, "_exit", left.append)
    run = slurm.Command(("raise SystemExit(130)",), tmp_path / "log.txt", 1, 0.1)
    assert run() == 130
    assert left == []  # nobody asked it to end: trainer.max_time
    asked = "import os, signal; os.kill(os.getppid(), signal.SIGTERM); raise SystemExit(130)"
    slurm.Command((asked,), tmp_path / "log.txt", 1, 0.1)()
    assert left == [130]


def test_a_saved_run_waits_for_as_long_as_its_preemption_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = iter(["PreemptTime=2026-01-01T10:00:00", "PreemptTime=None"])
    shown = lambda *_, **__: subprocess.CompletedProcess([], 0, stdout=next(told))  # noqa: E731
    left: list[int] = []
    job = slurm.Command(("",), tmp_path / "log.txt", 1, 0.01)
    monkeypatch.setattr(slurm.subprocess, "run", shown)
    monkeypatch.setattr(slurm.os, "_exit", left.append)
    job._wait_to_be_killed()
    assert left == [130]
    assert list(told) == []


def test_a_task_beside_the_first_leaves_no_result_at_the_time_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_PROCID", "1")
    monkeypatch.setattr(slurm, "command", lambda overrides: python(overrides[0]))
    left: list[int] = []
    monkeypatch.setattr(slurm.os, "_exit", left.append)
    limit = "import os, signal; os.kill(os.getppid(), signal.SIGUSR2); raise SystemExit(130)"
    slurm.Command((limit,), tmp_path / "log.txt", 1, 0.1, tasks=2)()
    assert left == [130]


def test_at_the_end_of_an_allocation_the_run_saves_and_is_queued_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(print('saved')));"
    save += "print('ready', flush=True); time.sleep(60)"
    monkeypatch.setattr(slurm, "command", lambda overrides: python(overrides[0]))
    log = tmp_path / "log.txt"
    job = slurm.Command((save,), log, 1, 30.0)

    def preempted(_: float) -> None:
        if "ready" in log.read_text():
            queued.append(job.checkpoint())

    queued: list[object] = []
    sleep = time.sleep
    monkeypatch.setattr(slurm.time, "sleep", lambda s: (sleep(s), queued or preempted(s)))
    job()
    assert log.read_text() == "ready\nsaved\n"
    again = queued[0].function  # type: ignore[attr-defined]
    assert (again.overrides, again.log) == (job.overrides, log)


def test_a_missing_library_or_cluster_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm.shutil, "which", lambda _: None)
    with pytest.raises(UserError, match="no sbatch here"):
        slurm.Submitit().check()
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(UserError, match=r"chimera-lm\[slurm\]"):
        slurm.Submitit().check()
