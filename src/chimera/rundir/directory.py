"""Directory of a run: all files that are needed to understand, repeat and evaluate it.

config.yaml       resolved configuration, after the scale's bounds
overrides.txt     the latest command line, one override per line, quoted as for a shell
environment.json  git commit, package versions, machine, hash of the tokens
status.json       RUNNING (with a heartbeat), DONE, STOPPED or FAILED (with the reason)
run.json          metrics, choices, parameters by component, speed, memory, time
run-<steps>.json  the same of the shorter run, if the run was extended
steps.csv         one row per optimiser step (TITAN Table 5)
points.jsonl      the points of the loggers
validations.json  the validations so far
curves.png        loss and learning rate
tokenizer/        the tokenizer; body/ the configuration of a model of transformers
test.npz          the test set as token ids, or where a large one is: an evaluation needs it, a
                  checkpoint, config.yaml, tokenizer/ and body/
checkpoints/      rolling, best, epoch-end and emergency ones; links last.ckpt and best.ckpt
nan_report-*      a tensor that was not finite, its place, and the batch
.lock, log.txt    held by the training process; output of a job of a sweep
All names that count as a run's own are in `cleanup.py`.

A run is found by its identity, a hash of the settings that affect its numbers. `extend=true` takes
a finished run to more steps in its own directory: `config.yaml` gets the new number of steps and a
list `extended` of `{from, to, time}`, which `run.json` repeats. The list is part of the identity: a
run of 100 steps that was extended to 200 is not the run of 200 steps, because its rates differ. It
keeps the name of its directory, so that only `run_dir=` finds it. Up to the step `from`, the rates
are those of a schedule over `from` steps, after it those of one over `to`: a decayed rate rises.
"""

from __future__ import annotations

import fcntl
import os
import re
import shlex
import socket
import subprocess
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

import yaml

from chimera.errors import UserError, one_line
from chimera.paths import runs_root
from chimera.rundir.environment import environment
from chimera.rundir.identity import EXTENDED, differences, identity
from chimera.safe_io import (
    TEMPORARY,
    age_of,
    check_links,
    check_place,
    expanded,
    make_folder,
    read_json,
    read_text,
    read_yaml,
    remove_temporary,
    write_atomic,
    write_json,
)
from chimera.types import NAME

#: Files that a directory may hold before its run starts: a sweep's log, the lock, checkpoints/.
BEFORE_START = {"log.txt", ".lock", "checkpoints"}

#: Keys that every status.json has.
STATUS = {"state", "time", "pid", "host"}

#: Largest number of differing keys that an error message lists.
MAX_DIFFERENCES = 4

#: Seconds between heartbeats of a run.
HEARTBEAT = 5.0
#: Seconds without a heartbeat after which a run on another host counts as dead.
HEARTBEAT_TIMEOUT = 60.0
#: Seconds without a heartbeat after which the other processes of a run count the first as gone.
SILENCE = 2.5 * HEARTBEAT


def open_run(config: dict[str, Any]) -> RunDir:
    """Find the run directory of a configuration and check its contents; nothing is written.

    Raises:
        UserError: the directory holds another run or other files.
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
        """Run directory of a configuration.

        It is `run_dir=` if set, else the existing run of the same identity under any name, unless
        it was extended, else `runs/<name>-<identity>`. So two rows of two tables that compute the
        same share one run.

        Raises:
            UserError: a name that would be a path.
        """
        if config.get("run_dir"):
            return RunDir(expanded(config["run_dir"]))
        if not re.fullmatch(NAME, config["name"]):
            raise UserError(
                f"name={config['name']} is not allowed; a run's directory is called by it, so it"
                " takes letters, digits and any of _ . + -"
            )
        digits = identity(config)
        root = runs_root()
        existing = runs_of(digits)
        return RunDir(existing[0] if existing else root / f"{config['name']}-{digits}")

    def check(self, config: dict[str, Any]) -> None:
        """Refuse a directory that holds anything but the run of this configuration.

        Call it before writing. Keys in `rundir.identity.NOT_IDENTITY` may differ, and in a
        directory named by `run_dir=` those in `RESUMABLE`, which say how much of which machine;
        `overwrite=true` accepts any run, which is started over; `extend=true` accepts a finished
        run of fewer steps.

        Raises:
            UserError: the path is a file, or holds other files, or another run; the message lists
                differing keys.
        """
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"run_dir={self.path} is a file; name a directory")
        check_place(self.path)
        check_links(self.path, "checkpoints", "tokenizer")
        names = {p.name for p in self.path.iterdir()} if self.path.is_dir() else set()
        others = {name for name in names - BEFORE_START if not TEMPORARY.fullmatch(name)}
        if others and not set(self.status()) >= STATUS:
            raise UserError(
                f"run_dir={self.path} contains files that are not part of a run; name a new or"
                " empty directory"
            )
        config = self.extended(config)
        if config["overwrite"]:
            return
        if "config.yaml" not in names:
            if any(self.checkpoints.glob("*.ckpt")):
                raise UserError(
                    f"run_dir={self.path} holds checkpoints and no config.yaml that says of which"
                    " run; name another run_dir, or start over in this one with overwrite=true"
                )
            return
        existing = self.config()
        if EXTENDED in config:  # all other settings have to be equal
            trainer = existing["trainer"] | {"max_steps": config["trainer"]["max_steps"]}
            existing |= {"trainer": trainer, EXTENDED: config[EXTENDED]}
        if not isinstance(existing.get("choices"), dict):
            line = f"run_dir={self.path}: its config.yaml has no choices, so it is not a run"
            raise UserError(f"{line}; name another run_dir, or start over with overwrite=true")
        if differing := differences(existing, config):
            rest = len(differing) - MAX_DIFFERENCES
            shown = "; ".join(differing[:MAX_DIFFERENCES]) + f"; and {rest} more" * (rest > 0)
            raise UserError(
                f"run_dir={self.path} holds another run: {shown}; name another run_dir, or start"
                " over in this one with overwrite=true"
            )

    def extended(self, config: dict[str, Any]) -> dict[str, Any]:
        """The configuration with the list of this run's extensions, with the one asked for.

        An interrupted extension is resumed by the same command.

        Args:
            config: of the command line; returned as it is without `extend=true`.

        Raises:
            UserError: the run here cannot be extended to these steps.
        """
        if not config.get("extend"):
            return config
        if config["overwrite"]:
            raise UserError(
                "extend=true goes on and overwrite=true starts over; choose one of them"
            )
        if not (self.path / "config.yaml").is_file():
            raise UserError(
                f"extend=true goes on with a finished run, and {self.path} holds none; name its"
                " directory with run_dir="
            )
        existing = self.config()
        steps = existing["trainer"]["max_steps"]
        target = config["trainer"]["max_steps"]
        past = list(existing.get(EXTENDED) or [])
        if past and target == steps:
            return config | {EXTENDED: past}
        if (state := self.status().get("state")) != "DONE":
            how = f"give trainer.max_steps={steps} first" if past else "leave extend=true out"
            raise UserError(
                f"extend=true goes on with a finished run, and run_dir={self.path} is {state};"
                f" {how} and the run resumes"
            )
        if steps is None or config["trainer"]["max_epochs"] is not None:
            raise UserError(
                "extend=true counts in trainer.max_steps, and this run's length is"
                " trainer.max_epochs; train a longer run in another run_dir"
            )
        if target is None or target <= steps:
            raise UserError(
                f"trainer.max_steps={target} is not more than the {steps} steps of"
                f" run_dir={self.path}; extend=true takes a larger one"
            )
        now = datetime.now(UTC).isoformat(timespec="seconds")
        return config | {EXTENDED: [*past, {"from": steps, "to": target, "time": now}]}

    def is_done(self, config: dict[str, Any]) -> bool:
        """Whether the run here is finished; with `extend=true`, at this configuration's steps."""
        if self.status().get("state") != "DONE":
            return False
        steps: object = self.config()["trainer"]["max_steps"]
        return not config.get("extend") or steps == config["trainer"]["max_steps"]

    def status(self) -> dict[str, Any]:
        """Contents of status.json, or `{}`."""
        return read_json(self.path / "status.json")

    def write_status(self, state: str, **details: object) -> None:
        """Write status.json.

        Args:
            state: RUNNING, DONE, STOPPED or FAILED.
            details: further keys, such as the step.
        """
        pid = os.getpid()
        process = {"pid": pid, "process": process_start(pid), "host": socket.gethostname()}
        write_json(
            self.path / "status.json", {"state": state, "time": _now(), **process, **details}
        )

    def is_running(self) -> bool:
        """Whether a process is training this run.

        On this host the process is looked up by its number and start time. On another host its
        heartbeat must be younger than a minute, by the clock of the file system.
        """
        status = self.status()
        if status.get("state") != "RUNNING":
            return False
        pid = status.get("pid")
        host = status.get("host")
        if not isinstance(pid, int) or not isinstance(host, str):  # not written by a run
            return False
        if host == socket.gethostname():
            start = process_start(pid)
            return start is not None and start == status.get("process")
        return age_of(self.path / "status.json") < HEARTBEAT_TIMEOUT

    def first_is_gone(self, silence: float = SILENCE) -> bool:
        """Whether the process that writes the status died or fell silent while it said RUNNING.

        Call it only when the run cannot go on: it waits a little over `silence` at most.

        Args:
            silence: seconds without a heartbeat, on any host.
        """
        # Its last sign may be as young as this call, and the file system's clock is a bit behind.
        end = time.monotonic() + 1.1 * silence + 0.2
        while self.is_running() and age_of(self.path / "status.json") < silence:
            if time.monotonic() > end:
                return False
            time.sleep(0.1)
        return self.status().get("state") == "RUNNING"

    def mark_failed(self, why: str) -> None:
        """Write FAILED in the name of the first process, which cannot any more."""
        write_json(self.path / "status.json", {**self.status(), "state": "FAILED", "why": why})

    def is_locked(self) -> bool:
        """Whether another process has locked the directory, to train there from now on.

        Never call it in the process that holds the lock: closing the file would release it.
        """
        if not (self.path / ".lock").is_file():
            return False
        with self._open_lock() as file:
            return not _locked(file)

    def lock(self) -> None:
        """Lock the directory for this process; the system releases the lock when the process ends.

        What a killed process was writing is removed.

        Raises:
            UserError: another process is training this run.
        """
        status = self.status()
        me = (os.getpid(), socket.gethostname())
        busy = self.is_running() and (status.get("pid"), status.get("host")) != me
        if not busy:
            make_folder(self.checkpoints, of=self.path)
            self._lock = self._open_lock()
            busy = not _locked(self._lock)
        if busy:
            status = self.status()
            raise UserError(
                f"{self.path} is being trained by process {status.get('pid')} on"
                f" {status.get('host')}; wait for it or name another run_dir"
            )
        for folder in (self.path, self.checkpoints, self.tokenizer):
            if folder.is_dir():
                remove_temporary(folder, locked=True)

    def _open_lock(self) -> TextIO:
        """The file of the lock, neither truncated nor through a link."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
        return os.fdopen(os.open(self.path / ".lock", flags, 0o644), "w")

    def start(
        self, config: dict[str, Any], overrides: list[str], about: Mapping[str, str] | None = None
    ) -> None:
        """Write status, configuration, overrides and environment of a run that begins or resumes.

        Args:
            config: of the run.
            overrides: of the command line.
            about: what else environment.json has.
        """
        make_folder(self.checkpoints, of=self.path)
        record = self.path / "run.json"  # exists if a finished run is extended or overwritten
        if config.get("extend") and record.exists():
            record.replace(self.path / f"run-{self.record()['steps']}.json")
        record.unlink(missing_ok=True)
        max_steps = config["trainer"]["max_steps"]
        self.write_status("RUNNING", started=_now(), step=0, max_steps=max_steps)
        # Absolute: `chimera clean`, run in any folder, asks it which files a run starts from.
        starts = {key: config.get(key) for key in ("ckpt_path", "init_from")}
        files = {k: expanded(v) for k, v in starts.items() if isinstance(v, str)}
        absolute = {k: str(file.absolute()) for k, file in files.items() if file.exists()}
        text = yaml.safe_dump(config | absolute, sort_keys=False)
        write_atomic(self.path / "config.yaml", text)
        write_atomic(self.path / "overrides.txt", "".join(f"{shlex.quote(o)}\n" for o in overrides))
        write_json(self.path / "environment.json", environment() | dict(about or {}))

    def config(self) -> dict[str, Any]:
        """Read the resolved configuration of the run.

        Raises:
            UserError: the directory holds no run.
        """
        file = self.path / "config.yaml"
        if not file.exists():
            raise UserError(f"run={self.path} holds no config.yaml; name the directory of a run")
        return read_yaml(file)

    def overrides(self) -> list[str]:
        """The command line of the run; empty without its file.

        Raises:
            UserError: the file cannot be read.
        """
        file = self.path / "overrides.txt"
        try:
            return shlex.split(read_text(file))
        except FileNotFoundError:
            return []
        except (OSError, ValueError) as error:
            raise UserError(f"{file} cannot be read: {one_line(error)}") from error

    def write_record(self, facts: Mapping[str, Any]) -> None:
        """Write run.json."""
        write_json(self.path / "run.json", facts)

    def record(self) -> dict[str, Any]:
        """Contents of run.json; `{}` before the run is done."""
        return read_json(self.path / "run.json")


def runs_of(digits: str) -> list[Path]:
    """Directories of the runs of an identity, without extended ones: they have more steps."""
    found = []
    for path in sorted(runs_root().glob(f"*-{digits}")):
        file = path / "config.yaml"
        extended = file.is_file() and f"\n{EXTENDED}:".encode() in file.read_bytes()
        if path.is_dir() and not extended:
            found.append(path)
    return found


def _locked(file: TextIO) -> bool:
    """Lock a file for this process; whether no other one has."""
    try:
        # Not flock: worker processes inherit it, so those of a killed run would hold it.
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks: only the heartbeat protects the run
        pass
    return True


def process_start(pid: int) -> str | None:
    """Start time of a process of this host, in the host's unit; None if the process has ended.

    It tells a process from a later one with the same number.
    """
    stat = Path(f"/proc/{pid}/stat")
    if Path("/proc/self/stat").exists():
        try:  # the second field, the name in brackets, may contain blanks and brackets
            state, *rest = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            return None
        return None if state in "ZX" else rest[18]
    ps = subprocess.run(("ps", "-o", "lstart=", "-p", str(pid)), capture_output=True, text=True)
    return ps.stdout.strip() or None


def _now() -> str:
    return datetime.now(UTC).isoformat()


def directory_of_row(digits: str) -> RunDir:
    """Where the run of a row that another run needs is; before it exists, a path of nothing.

    Args:
        digits: identity of the row's run.
    """
    directories = runs_of(digits)
    return RunDir(directories[0] if directories else runs_root() / f"row-{digits}")


def directory_of_teacher(teacher: str, teacher_run: str) -> RunDir:
    """Run directory of a teacher.

    Args:
        teacher: value of `task.teacher`: a directory, or `row:<paper>/<table>/<row>`.
        teacher_run: identity of the teacher's run.
    """
    return (
        directory_of_row(teacher_run) if teacher.startswith("row:") else RunDir(expanded(teacher))
    )
