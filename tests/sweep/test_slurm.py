"""Faults of a real Slurm end in: saved, went on, DONE with the same losses; secrets stay secret."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from chimera.paths import ROOT
from chimera.rundir.directory import RunDir
from tests.sweep.slurm_faults import FAULTS, available, check, reference, slurm
from tests.torture.job import arguments

SET_UP = ROOT / "tools" / "slurm_local.sh"
SECRETS = {"HF_TOKEN": "hf_marker5150", "WANDB_API_KEY": "5150marker" * 4}


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """The Slurm that answers here, else one of this machine."""
    if shutil.which("sbatch") is None:
        pytest.skip(available())
    if not available():
        yield
        return
    if os.geteuid():
        pytest.skip(f"{available()} (as root)")
    folder = Path(tempfile.mkdtemp(prefix="slurm-local-"))
    folder.chmod(0o755)  # munged is another user
    settings = {"SLURM_LOCAL": str(folder), "SLURM_LOCAL_KILLWAIT": "5", "SLURM_LOCAL_CPUS": "4"}
    subprocess.run([SET_UP, "start"], env=os.environ | settings, check=True)
    os.environ["SLURM_CONF"] = str(folder / "slurm.conf")
    yield
    subprocess.run([SET_UP, "stop"], env=os.environ | settings, check=True)
    del os.environ["SLURM_CONF"]
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("slurm")


@pytest.fixture(scope="module", params=[1, 2], ids=["one task", "two tasks"])
def undisturbed(
    request: pytest.FixtureRequest, cluster: None, folder: Path
) -> tuple[int, list[float]]:
    """Number of tasks, and the losses of one process."""
    return request.param, reference(folder, request.param)


# The signals, states and results of each have quick tests in test_launchers.py.
@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_run_ends_done_with_the_same_losses(
    fault: str, folder: Path, undisturbed: tuple[int, list[float]]
) -> None:
    tasks, expected = undisturbed
    happened, _ = check(fault, folder, expected, tasks)
    assert "DONE, same losses" in happened
    assert "exit code" not in happened


def sweep(folder: Path, *overrides: str) -> subprocess.Popen[str]:
    """Start a sweep of short runs in a folder, with secrets in its environment."""
    job = arguments(folder, Path("unused"), "logger=wandb", "trainer.max_steps=2")
    job = list({text.partition("=")[0]: text for text in job}.values())  # each key once
    job = [text for text in job if not text.startswith("run_dir=")]
    runs = {"CHIMERA_RUNS": str(folder / "runs"), "WANDB_MODE": "offline"}
    command = [sys.executable, str(ROOT / "train.py"), "-m", *job, "launcher=submitit"]
    return subprocess.Popen(
        [*command, "launcher.cpus=1", *overrides],
        env=os.environ | runs | SECRETS, stderr=subprocess.PIPE, text=True, cwd=folder,
    )  # fmt: skip


@pytest.mark.slow
def test_a_sweep_is_one_array_of_so_many_jobs_at_once_and_leaks_nothing(
    cluster: None, tmp_path: Path
) -> None:
    driver = sweep(tmp_path, "seed=0,1,2", "launcher.at_once=2")
    running = []
    while driver.poll() is None:
        jobs = slurm("squeue", "--me", "-h", "-r", "-t", "RUNNING", "-o", "%i").split()
        running.append(sum("_" in job for job in jobs))  # of an array
        time.sleep(0.5)
    assert driver.returncode == 0, driver.communicate()[1]
    assert max(running) == 2
    statuses = [RunDir(path.parent).status() for path in tmp_path.glob("runs/*/status.json")]
    assert [status["state"] for status in statuses] == ["DONE"] * 3
    (script,) = (tmp_path / "runs" / ".slurm").glob("*/*_submission.sh")  # one call of sbatch
    assert "#SBATCH --array=0-2%2\n" in script.read_text()
    for private in (script.parent, script.parent.parent):
        assert private.stat().st_mode & 0o777 == 0o700
    assert list(script.parent.glob("*_result.pkl"))
    assert leaks(tmp_path) == []


REFUSED = [
    ("launcher.partition=nope", "invalid partition specified: nope"),
    ("launcher.mem_gb=99999", "Memory specification can not be satisfied"),
    ("launcher.gpus=4", "Invalid generic resource (gres) specification"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("override", "told"), REFUSED, ids=[o for o, _ in REFUSED])
def test_what_sbatch_refuses_is_one_line(
    cluster: None, tmp_path: Path, override: str, told: str
) -> None:
    driver = sweep(tmp_path, "seed=0,1", override)
    (line,) = driver.communicate()[1].splitlines()
    assert driver.returncode == 2
    assert line.startswith("error: Slurm refused the job: ")
    assert told in line
    assert list(tmp_path.glob("runs/[!.]*")) == []  # no run


def leaks(folder: Path) -> list[Path]:
    """Files below a folder that hold a secret."""
    markers = [value.encode() for value in SECRETS.values()]
    files = [file for file in folder.rglob("*") if file.is_file()]
    assert files
    return [file for file in files if any(m in file.read_bytes() for m in markers)]


def test_what_a_run_writes_at_its_start_holds_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    RunDir(tmp_path / "run").start({"trainer": {"max_steps": 1}}, ["seed=1"])
    assert leaks(tmp_path) == []


@pytest.mark.slow
def test_no_file_of_a_job_or_of_submitit_holds_a_secret(tmp_path: Path) -> None:
    job = arguments(tmp_path, tmp_path / "runs" / "run", "logger=wandb", "trainer.max_steps=2")
    launcher = ["launcher=submitit", "launcher.cluster=local", "launcher.cpus=1"]
    runs = {"CHIMERA_RUNS": str(tmp_path / "runs"), "WANDB_MODE": "offline"}
    command = [sys.executable, str(ROOT / "train.py"), "-m", *job, *launcher]
    subprocess.run(command, env=os.environ | runs | SECRETS, check=True)
    assert list((tmp_path / "runs" / ".slurm").rglob("*.pkl"))
    assert leaks(tmp_path) == []
