"""The directory of a run: name, files, atomic writes, lock."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from chimera.config.compose import compose, plain
from chimera.dotted import flatten
from chimera.errors import UserError
from chimera.paths import ROOT
from chimera.rundir.directory import RunDir, open_run
from chimera.rundir.environment import environment, git_state, listed, processor
from chimera.rundir.identity import identity
from chimera.safe_io import HOST, write_atomic, write_json
from tests import forks


def config(*overrides: str) -> dict[str, object]:
    return plain(compose(list(overrides)))


def test_the_directory_depends_on_settings_that_change_results(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CHIMERA_RUNS", raising=False)
    assert identity(config()) == identity(config())
    assert identity(config()) != identity(config("seed=1"))
    assert identity(config()) != identity(config("optim.lr=1e-3"))
    assert identity(config()) != identity(config("mixer=gqa"))
    places = ("logger=none", "name=x", "run_dir=/x", "data.num_workers=2", "data.cache_dir=/x")
    saves = ("trainer.checkpoint_keep=1", "guard=skip", "trainer.log_every_n_steps=3")
    for cosmetic in (*places, *saves):
        assert identity(config()) == identity(config(cosmetic)), cosmetic
    found = RunDir.of(config("mixer=gqa")).path
    assert found.parent == ROOT / "runs"
    assert found.name.startswith("mlm-gqa-none-layernorm-")


def test_run_dir_chooses_the_directory(tmp_path: Path) -> None:
    assert RunDir.of(config(f"run_dir={tmp_path}")).path == tmp_path


def test_the_command_line_is_read_as_it_was_written(tmp_path: Path) -> None:
    words = ["seed=1", "data.path='a folder/x.txt'", "tags=['a\n b']", 'name="é"']
    RunDir(tmp_path).start(config(), words)
    assert RunDir(tmp_path).overrides() == words
    (tmp_path / "overrides.txt").write_text("name='a")
    with pytest.raises(UserError, match=r"overrides\.txt cannot be read"):
        RunDir(tmp_path).overrides()


def test_a_directory_of_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(UserError, match="not part of a run"):
        open_run(config(f"run_dir={tmp_path}"))
    (tmp_path / "a").mkdir()
    open_run(config(f"run_dir={tmp_path}/a"))  # empty: fine
    (tmp_path / "a" / ".status.json.77-7.tmp").write_text("of a process that was killed")
    open_run(config(f"run_dir={tmp_path}/a"))
    open_run(config(f"run_dir={tmp_path}/new"))


def test_a_directory_of_another_run_is_refused_with_the_keys_that_differ(tmp_path: Path) -> None:
    here = f"run_dir={tmp_path}"
    RunDir(tmp_path).start(config(here, "mixer=gqa"), [])
    for state in ("RUNNING", "STOPPED", "FAILED", "DONE"):
        RunDir(tmp_path).write_status(state)
        open_run(config(here, "mixer=gqa", "data.num_workers=2", "logger=none", "name=other"))
        open_run(config(here, "overwrite=true"))
        with pytest.raises(UserError, match=r"another run: mixer\.bias=False there, True here;"):
            open_run(config(here, "mixer=gqa", "mixer.bias=true"))


def test_an_atomic_write_leaves_the_old_text_when_it_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.json"
    write_atomic(file, "old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="No space"):
        write_atomic(file, "new")
    assert file.read_text() == "old"


def test_environment_has_packages_and_processor() -> None:
    found = environment()
    assert found["packages"]["torch"]
    assert found["processor"]
    json.dumps(found)


def test_changed_files_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*arguments: str) -> None:
        author = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        subprocess.run(["git", *author, *arguments], cwd=tmp_path, check=True, capture_output=True)

    monkeypatch.setattr("chimera.rundir.environment.CHECKOUT", tmp_path)
    assert git_state() == {}
    git("init")
    (tmp_path / "code.py").write_text("1")
    git("add", ".")
    git("commit", "-m", "first")
    clean = git_state()
    assert clean == {"commit": clean["commit"], "changed": False}
    (tmp_path / "code.py").write_text("2")
    (tmp_path / "note.md").write_text("3")
    expected = {**clean, "changed": True, "files": [" M code.py", "?? note.md"]}
    assert git_state() == expected
    assert listed([f"?? {n}" for n in range(23)])[19:] == ["?? 19", "and 3 more"]


@pytest.mark.parametrize(
    ("cpuinfo", "expected"),
    [
        (
            "cpu family\t: 25\nmodel\t\t: 1\nmodel name\t: AMD EPYC\n\nmodel\t\t: 2\n",
            "AMD EPYC (family 25, model 1)",
        ),
        ("model name\t: Another\n", "Another"),
        ("processor\t: 0\nBogoMIPS\t: 243.75\n", platform.processor()),  # as on ARM
    ],
)
def test_a_processor_is_named_with_its_generation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cpuinfo: str, expected: str
) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text(cpuinfo)
    monkeypatch.setattr("chimera.rundir.environment.CPU", file)
    assert processor() == expected


def test_flat_keys() -> None:
    assert flatten({"a": {"b": 1, "c": {}}, "d": None}) == {"a.b": 1, "a.c": {}, "d": None}


def test_an_existing_run_is_found_under_another_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHIMERA_RUNS", str(tmp_path))
    first = RunDir.of(config("name=row-of-one-table"))
    assert first.path.parent == tmp_path
    first.path.mkdir()
    assert RunDir.of(config("name=row-of-another")).path == first.path
    assert RunDir.of(config("name=another", "seed=1")).path != first.path


def test_alive_is_who_says_running_and_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunDir(tmp_path)
    assert not run.is_running()
    run.write_status("RUNNING")
    assert run.is_running()
    status = run.status()
    write_json(tmp_path / "status.json", {**status, "process": "1"})  # the number was given away
    assert not run.is_running()
    write_json(tmp_path / "status.json", {**status, "host": "elsewhere"})
    assert run.is_running()
    os.utime(tmp_path / "status.json", (0, 0))
    assert not run.is_running()
    run.write_status("DONE")
    assert not run.is_running()


def test_a_second_process_cannot_lock_the_run(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    run.checkpoints.mkdir(parents=True)
    left = [run.path / ".status.json.7-7.tmp", run.checkpoints / ".last.ckpt.7-7.tmp"]
    kept = [run.path / ".bashrc", run.checkpoints / ".mine.tmp"]
    for file in (*left, *kept):
        file.touch()
    run.lock()
    assert [file.exists() for file in (*left, *kept)] == [False, False, True, True]
    run.write_status("RUNNING")
    program = (
        "import sys; from pathlib import Path; from chimera.rundir.directory import RunDir\n"
        "RunDir(Path(sys.argv[1])).lock()"
    )
    words = ["-c", program, str(run.path)]
    assert "is being trained by process" in forks.run(*words).stderr
    run.write_status("DONE")  # the lock is still held, whatever the file says
    assert forks.run(*words).returncode
    run._lock.close()
    assert forks.run(*words).returncode == 0


@pytest.mark.parametrize(("clock", "beat", "running"), [(3600, 120, False), (-3600, 0, True)])
def test_a_heartbeat_of_a_host_with_another_clock(
    clock: float, beat: float, running: bool, tmp_path: Path
) -> None:
    # Its clock is an hour ahead and it died two minutes ago; an hour behind and it is alive.
    run = RunDir(tmp_path)
    time = datetime.now(UTC) + timedelta(seconds=clock - beat)
    status = {"state": "RUNNING", "host": "elsewhere", "pid": 1, "time": time.isoformat()}
    file = tmp_path / "status.json"
    file.write_text(json.dumps(status))
    written = file.stat().st_mtime - beat
    os.utime(file, (written, written))
    assert run.is_running() is running
    assert [path.name for path in tmp_path.iterdir()] == ["status.json"]


def test_a_directory_that_cannot_be_made_is_refused_in_one_line() -> None:
    with pytest.raises(UserError, match="run_dir=/proc/x cannot be made"):
        RunDir(Path("/proc/x")).lock()  # also root may make no folder there


def test_the_first_process_is_gone_when_it_has_ended(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    code = (
        "import sys; from pathlib import Path; from chimera.rundir.directory import RunDir;"
        " RunDir(Path(sys.argv[1])).write_status('RUNNING', step=4)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    assert run.first_is_gone()  # and nobody waits until its heartbeat is old
    run.mark_failed("the first process was ended")
    status = json.loads((tmp_path / "status.json").read_text())
    assert (status["state"], status["step"]) == ("FAILED", 4)
    assert not run.first_is_gone()  # somebody has said so
    run.write_status("DONE")
    assert not run.first_is_gone()


def test_the_first_process_is_gone_when_its_heart_has_stopped(tmp_path: Path) -> None:
    run, end = RunDir(tmp_path), threading.Event()
    run.write_status("RUNNING", step=3)  # by this process, which lives

    def beat() -> None:
        while not end.wait(0.05):
            run.write_status("RUNNING", step=3)

    heart = threading.Thread(target=beat)
    heart.start()
    try:
        assert not run.first_is_gone(silence=2.0)
    finally:
        end.set()
        heart.join()
    assert run.first_is_gone(silence=0.5)


def test_what_a_killed_process_of_this_host_was_writing_goes_with_the_next_file(
    tmp_path: Path,
) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    elsewhere = f".a.json.{ended.pid}-7-1.tmp"
    alive = f".a.json.{os.getppid()}-7.tmp"
    kept = {elsewhere, alive, ".mine.tmp"}
    for name in (*kept, f".a.json.{ended.pid}-7.tmp"):
        (tmp_path / name).touch()
    (tmp_path / f".run.{ended.pid}-7-{HOST}.tmp" / "checkpoints").mkdir(parents=True)
    write_json(tmp_path / "b.json", {})
    assert {path.name for path in tmp_path.iterdir()} == {"b.json", *kept}


def test_a_folder_with_another_programs_status_is_no_run(tmp_path: Path) -> None:
    write_json(tmp_path / "status.json", {"state": "mine"})
    with pytest.raises(UserError, match="contains files that are not part of a run"):
        RunDir(tmp_path).check(config())


def test_a_pipe_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "run.json")
    with pytest.raises(UserError, match="no regular file"):
        RunDir(tmp_path).record()
