"""`chimera clean` removes surplus checkpoints, old runs and caches, and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from chimera.cli.folders import clean as main
from chimera.config.compose import compose, plain
from chimera.rundir.checkpoints import Sidecar, announce, link
from chimera.rundir.cleanup import DAY, plan, remove
from chimera.rundir.directory import RunDir

CONFIG = plain(compose(["scale=smoke"]))


def checkpoint(folder: Path, name: str, step: int, loss: float | None = None) -> Path:
    """A checkpoint of invented bytes."""
    path = folder / f"{name}.ckpt"
    path.write_bytes(f"{name}{step}".encode() * 100)
    announce(path, Sidecar(step=step, loss=loss, sha256=["x"]))
    return path


def make(path: Path, state: str = "DONE", **config: object) -> Path:
    """A run of several tiers; the last checkpoint is rolling-30, the best one best-20."""
    run = RunDir(path)
    run.checkpoints.mkdir(parents=True)
    run.write_status(state)
    if state != "RUNNING":  # of another process, which has ended
        status = run.status() | {"pid": 0}
        (path / "status.json").write_text(json.dumps(status))
    (path / "config.yaml").write_text(yaml.safe_dump({**CONFIG, **config}))
    for file in ("overrides.txt", "steps.csv", "log.txt", ".lock"):
        (path / file).write_text("x")
    if state == "DONE":
        (path / "run.json").write_text(json.dumps({"metrics": {}}))
    for step in (10, 20, 30):
        checkpoint(run.checkpoints, f"rolling-{step}", step)
    for step, loss in ((20, 1.0), (30, 2.0)):
        checkpoint(run.checkpoints, f"best-{step}", step, loss)
    checkpoint(run.checkpoints, "epoch-0", 15)
    (run.checkpoints / "rolling-5.ckpt.invalid").write_text("damaged")
    (run.checkpoints / ".rolling-40.ckpt.7-7.tmp").write_text("of a killed process")
    link(run.checkpoints / "last.ckpt", run.checkpoints / "rolling-30.ckpt")
    link(run.checkpoints / "best.ckpt", run.checkpoints / "best-20.ckpt")
    return path


def age(run: Path, days: float) -> None:
    """Let all files of a run be so old."""
    then = time.time() - days * DAY
    for file in run.rglob("*"):
        os.utime(file, (then, then), follow_symlinks=False)


def state(root: Path) -> dict[str, str]:
    """Every path below a folder with what it holds."""
    found = {}
    for path in sorted(root.rglob("*")):
        held = os.readlink(path) if path.is_symlink() else ""
        if path.is_file() and not path.is_symlink():
            held = path.read_bytes().hex()
        found[str(path.relative_to(root))] = held
    return found


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of runs, and a cache, of this test's own."""
    monkeypatch.setenv("CHIMERA_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("CHIMERA_CACHE", str(tmp_path / "cache"))
    (tmp_path / "runs").mkdir()
    return tmp_path / "runs"


GONE = {
    *(f"checkpoints/{n}.ckpt" for n in ("rolling-10", "rolling-20", "best-30", "epoch-0")),
    *(f"checkpoints/{n}.ckpt.json" for n in ("rolling-10", "rolling-20", "best-30", "epoch-0")),
    "checkpoints/rolling-5.ckpt.invalid",
    "checkpoints/.rolling-40.ckpt.7-7.tmp",
}


def test_the_last_and_the_best_checkpoint_stay(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make(root / "a-11111111")
    (run / "checkpoints" / "mine.ckpt").write_text("somebody's own")
    (run / "checkpoints" / "rolling-10.ckpt.bak").write_text("likewise")
    before = state(root)
    assert main([]) == 0
    said = capsys.readouterr().out
    assert "keeps best-20.ckpt, rolling-30.ckpt" in said
    assert "nothing was: yes=true removes it" in said
    assert state(root) == before
    assert main(["yes=true"]) == 0
    gone = {f"a-11111111/{name}" for name in GONE}
    assert state(root) == {name: held for name, held in before.items() if name not in gone}
    assert (run / "checkpoints/last.ckpt").read_bytes() == b"rolling-3030" * 100
    assert main(["yes=true"]) == 0
    assert capsys.readouterr().out.endswith("removed 0 bytes\n")


def test_what_is_no_finished_run_of_ours_is_left(root: Path, tmp_path: Path) -> None:
    make(root / "running", "RUNNING")  # by this process
    make(root / "failed", "FAILED")
    make(root / "unread")
    (root / "unread" / "config.yaml").write_text("a: &a [1]\nb: *a\n")
    make(root / "foreign")
    (root / "foreign" / "config.yaml").write_text("learning_rate: 1\n")
    make(root / "unrecorded")
    (root / "unrecorded" / "run.json").unlink()
    make(root / "strange")
    (root / "strange" / "status.json").write_text('{"state": "DONE"}')
    (root / "plain").mkdir()
    (root / "plain" / "rolling-1.ckpt").write_text("a file of another program")
    make(tmp_path / "elsewhere")
    (root / "linked").symlink_to(tmp_path / "elsewhere")
    inside = make(root / "inside")
    os.rename(inside / "checkpoints", tmp_path / "outside")
    (inside / "checkpoints").symlink_to(tmp_path / "outside")
    for path in root.iterdir():
        if not path.is_symlink():
            age(path, 100)
    before = state(tmp_path)
    assert main(["yes=true"]) == 0
    assert main([str(root), "yes=true", "caches=true"]) == 0
    assert state(tmp_path) == before


def test_a_process_that_trains_keeps_its_files(root: Path) -> None:
    run = make(root / "a")
    removal = plan(run)
    assert removal is not None
    code = (
        "import sys, time; from pathlib import Path; from chimera.rundir.directory import RunDir;"
        "run = RunDir(Path(sys.argv[1])); run.lock(); run.write_status('RUNNING');"
        "print('ready', flush=True); time.sleep(60)"
    )
    before = state(root)
    command = [sys.executable, "-c", code, str(run)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        from chimera.errors import UserError

        assert plan(run) is None
        with pytest.raises(UserError, match="is being trained"):
            remove(removal)
        process.kill()
    after = state(root)
    changed = {k for k in before if before[k] != after.get(k)}
    assert changed == {"a/status.json", "a/checkpoints/.rolling-40.ckpt.7-7.tmp"}
    assert after.keys() <= before.keys()


def test_checkpoints_that_other_runs_start_from_stay(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make(root / "a")
    monkeypatch.chdir(run)
    RunDir(root / "b").start({**CONFIG, "ckpt_path": "checkpoints/rolling-10.ckpt"}, [])
    monkeypatch.chdir(root)  # where the path leads nowhere
    monkeypatch.setenv("CHIMERA_RUNS", str(root / "c"))  # it is beside the one that is named
    assert main([str(run), "yes=true"]) == 0
    names = {path.name for path in (run / "checkpoints").glob("*.ckpt")}
    assert names == {
        *("rolling-10.ckpt", "rolling-30.ckpt", "best-20.ckpt", "last.ckpt", "best.ckpt")
    }


@pytest.mark.parametrize(
    ("name", "goes"),
    [
        *(("profiled_model.pt", False), ("nan_report-mine.txt", False)),
        *(("nan_report-7.txt", False), ("nan_report-7-rank1.npz", True)),
        *(("test-profile-1.txt", True), ("fit-profile-0-[A]b.c.1764.pt.trace.json", True)),
        *(("tensorboard/events.mine", False), ("tensorboard/events.out.tfevents.17.h.1.0", True)),
        *(("wandb/debug-notes.log", False), ("wandb/debug-internal.log", True)),
    ],
)
def test_only_names_that_a_run_writes_are_its_own(root: Path, name: str, goes: bool) -> None:
    run = make(root / "a", "STOPPED")
    (run / name).parent.mkdir(exist_ok=True)
    (run / name).write_text("x")
    age(run, 40)
    assert main(["stale=30", "yes=true"]) == 0
    assert run.exists() is not goes


def test_old_unfinished_runs_go_as_a_whole_if_all_of_it_is_ours(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("old", "young", "noted", "begun", "within", "profiled"):
        make(root / name, "STOPPED" if name != "begun" else "FAILED")
    (root / "within" / "checkpoints" / "mine.safetensors").write_text("somebody's own")
    make(root / "done")
    (root / "noted" / "notes.md").write_text("what I learnt")
    (root / "profiled" / "my_profile_notes.txt").write_text("likewise")
    for name in ("fit-profile.txt", "nan_report-3-rank1.json", "curves.png"):
        (root / "old" / name).write_text("of the run")
    (root / "done" / "checkpoints" / "epoch-0.ckpt").unlink()
    for name in ("old", "noted", "begun", "done", "within", "profiled"):
        age(root / name, 40)
    make(root / "later", "STOPPED", init_from=str(root / "begun"))
    before = state(root)
    assert main(["stale=30"]) == 0
    assert "the whole run (stopped, 40 days old)" in capsys.readouterr().out
    assert state(root) == before
    assert main(["stale=30", "yes=true"]) == 0
    assert {path.name for path in root.iterdir()} == {
        *("young", "noted", "begun", "done", "later", "within", "profiled")
    }
    left = {name for name in before if name.split("/")[0] not in ("old", "done")}
    assert left <= state(root).keys()


def test_bytes_of_a_file_with_two_names_count_when_both_go(root: Path) -> None:
    run = make(root / "a")
    folder = run / "checkpoints"
    (folder / "epoch-0.ckpt").unlink()
    os.link(folder / "rolling-30.ckpt", folder / "epoch-0.ckpt")
    removal = plan(run)
    assert removal is not None
    sizes = {path.name: path.stat().st_size for path in removal.files}
    assert removal.size == sum(sizes.values()) - sizes["epoch-0.ckpt"]


def test_caches_go_except_what_runs_and_builders_use(root: Path, tmp_path: Path) -> None:
    import numpy as np
    from filelock import FileLock

    from chimera.data.source import cache

    def build(folder: Path) -> dict[str, int]:
        (folder / "train.bin").write_bytes(b"12")
        return {}

    folder = tmp_path / "cache"
    kinds = {name: cache.entry(folder, "tokens", name * 32, build)[0] for name in "abc"}
    (folder / "tokens" / "mine").mkdir()
    (folder / "notes.txt").write_text("x")
    (folder / "other").mkdir()
    (folder / "other" / ("d" * 32)).mkdir()  # without a manifest
    run = make(root / "a")
    arrays = {"reference": np.array([str(kinds["a"] / "train.bin")])}
    np.savez(run / "test.npz", **arrays)
    assert main(["caches=true"]) == 0
    assert all(path.is_dir() for path in kinds.values())
    with FileLock(kinds["b"].with_suffix(".lock")):
        process = "import sys; from chimera.cli.folders import clean; sys.exit(clean(sys.argv[1:]))"
        command = [sys.executable, "-c", process, "caches=true", "yes=true"]
        assert subprocess.run(command, capture_output=True).returncode == 0
    assert [path.is_dir() for path in kinds.values()] == [True, True, False]
    left = {path.name for path in folder.iterdir()} | {p.name for p in (folder / "other").iterdir()}
    assert left == {"tokens", "notes.txt", "other", "d" * 32}
    assert (folder / "tokens" / "mine").is_dir()
