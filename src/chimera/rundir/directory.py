"""What a run leaves behind: one directory from which it can be understood, repeated, evaluated.

config.yaml       resolved, after the scale's bounds
overrides.txt     the command line, a word a line
environment.json  git commit, package versions, machine
status.json       RUNNING (with a heartbeat), DONE, STOPPED or FAILED (why)
run.json          metrics, choices, parameters by component, speed, memory, time
steps.csv         a row per optimiser step (TITAN Table 5)
curves.png        loss and learning rate
tokenizer/        what evaluation needs, with test.npz
checkpoints/      rolling, best, at epoch ends; last.ckpt and best.ckpt are links to the right ones
nan_report-*      what was not finite, where, and the batch that did it
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from chimera.errors import UserError
from chimera.paths import runs_root
from chimera.rundir.atomic import write_atomic, write_json
from chimera.rundir.class_table import current
from chimera.rundir.environment import environment
from chimera.rundir.identity import differences, identity

#: What a directory may hold before its run has said anything: a sweep's log, a claim.
BEFORE_START = {"log.txt", ".lock", "checkpoints"}

#: Keys named where two runs differ.
MOST = 4

#: Seconds between heartbeats of a run, and without one until it counts as dead on another host.
HEARTBEAT, SILENCE = 5.0, 60.0


def open_run(config: dict[str, Any]) -> RunDir:
    """The directory of the run of a configuration, compared with what it holds; nothing is written.

    Raises:
        UserError: it holds something else.
    """
    directory = RunDir.of(config)
    directory.check(config)
    return directory


class RunDir:
    """The directory of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.tokenizer = path / "tokenizer"
        self.steps = path / "steps.csv"
        self.curves = path / "curves.png"
        self.test_data = path / "test.npz"

    @staticmethod
    def of(config: dict[str, Any]) -> RunDir:
        """`run_dir=` if given, else the run of this identity: one that is there, or a new one.

        Two rows of two tables that compute the same are one run, whatever it was called first.
        """
        if config.get("run_dir"):
            return RunDir(Path(config["run_dir"]))
        digits, root = identity(config), runs_root()
        there = sorted(p for p in root.glob(f"*-{digits}") if p.is_dir())
        return RunDir(there[0] if there else root / f"{config['name']}-{digits}")

    def check(self, config: dict[str, Any]) -> None:
        """Refuse a directory that holds something else than the run of this configuration.

        Asked before anything is written. Keys outside the identity may differ (see
        `rundir.identity.NOT_IDENTITY`), and `overwrite=true` starts over whatever run is there.

        Raises:
            UserError: a file, other files, or another run: with the keys that differ.
        """
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"run_dir={self.path} is a file; name a directory")
        there = {p.name for p in self.path.iterdir()} if self.path.is_dir() else set()
        if there - BEFORE_START and not self.status():
            raise UserError(f"run_dir={self.path} holds other files; name a new or empty directory")
        if config["overwrite"] or not (self.path / "config.yaml").exists():
            return
        if other := differences(self.config(), config):
            shown = "; ".join(other[:MOST]) + (
                f"; and {len(other) - MOST} more" * (len(other) > MOST)
            )
            raise UserError(
                f"run_dir={self.path} holds another run: {shown}; name another run_dir, or start"
                " over in this one with overwrite=true"
            )

    def status(self) -> dict[str, Any]:
        """The contents of status.json; empty if there is none."""
        return _read_json(self.path / "status.json")

    def mark(self, state: str, **more: object) -> None:
        """Write status.json: RUNNING, DONE, STOPPED or FAILED, with what else is known."""
        pid = os.getpid()
        where = {"pid": pid, "process": process_start(pid), "host": socket.gethostname()}
        write_json(self.path / "status.json", {"state": state, "time": _now(), **where, **more})

    def alive(self) -> bool:
        """Whether a process is at work on this run.

        On this host it is looked for, by its number and the time it started at; on another one its
        heartbeat has to be younger than a minute.
        """
        status = self.status()
        if status.get("state") != "RUNNING":
            return False
        if status["host"] == socket.gethostname():
            start = process_start(status["pid"])
            return start is not None and start == status.get("process")
        age = datetime.now(UTC) - datetime.fromisoformat(status["time"])
        return age.total_seconds() < SILENCE

    def claim(self) -> None:
        """Make the directory this process' own until it ends, however it does.

        Raises:
            UserError: another process is at work on it.
        """
        other = self.alive() and self.status()["pid"] != os.getpid()
        if not other:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            self._lock = (self.path / ".lock").open("w")
            try:
                # Not flock: workers of a killed run inherit that and would keep us out.
                fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                other = True
            except OSError:  # a file system without locks: the heartbeat has to do
                pass
        if other:
            status = self.status()
            raise UserError(
                f"{self.path} is being trained by process {status.get('pid')} on"
                f" {status.get('host')}; wait for it or name another run_dir"
            )

    def start(self, config: dict[str, Any], overrides: list[str]) -> None:
        """Create the directory with all that is known before training."""
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        (self.path / "run.json").unlink(missing_ok=True)  # of a run that is being started over
        self.mark("RUNNING", started=_now(), step=0, max_steps=config["trainer"]["max_steps"])
        write_atomic(self.path / "config.yaml", yaml.safe_dump(config, sort_keys=False))
        write_atomic(self.path / "overrides.txt", "".join(f"{o}\n" for o in overrides))
        write_json(self.path / "environment.json", environment())

    def config(self) -> dict[str, Any]:
        """The resolved configuration of the run.

        Raises:
            UserError: if this is no run's directory.
        """
        file = self.path / "config.yaml"
        if not file.exists():
            raise UserError(f"run={self.path} holds no config.yaml; name the directory of a run")
        loaded = yaml.safe_load(file.read_text(encoding="utf-8"))
        assert isinstance(loaded, dict)
        found: dict[str, Any] = current(loaded)
        return found

    def record(self) -> dict[str, Any]:
        """What run.json holds; empty before the run is done."""
        return _read_json(self.path / "run.json")


def process_start(pid: int) -> str | None:
    """When a process of this host began, in whatever unit the host has; None if it is gone.

    With it a number that was given to a new process is not taken for the old one.
    """
    stat = Path(f"/proc/{pid}/stat")
    if Path("/proc/self/stat").exists():
        try:  # the name, in brackets, may hold anything
            state, *rest = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            return None
        return None if state in "ZX" else rest[18]
    found = subprocess.run(("ps", "-o", "lstart=", "-p", str(pid)), capture_output=True, text=True)
    return found.stdout.strip() or None


def _now() -> str:
    return datetime.now(UTC).isoformat()


def _read_json(file: Path) -> dict[str, Any]:
    with contextlib.suppress(FileNotFoundError):
        found = json.loads(file.read_text(encoding="utf-8"))
        assert isinstance(found, dict)
        return found
    return {}


def locate(teacher: str, teacher_run: str) -> RunDir:
    """The directory of a teacher by its name in `task.teacher` and its identity."""
    if not teacher.startswith("row:"):
        return RunDir(Path(teacher))
    from chimera.paths import runs_root

    there = sorted(runs_root().glob(f"*-{teacher_run}"))
    return RunDir(there[0] if there else runs_root() / f"teacher-{teacher_run}")
