"""What a run leaves behind: one directory from which it can be understood, repeated, evaluated.

config.yaml       resolved, after the scale's bounds
overrides.txt     the command line, a word a line
environment.json  git commit, package versions, machine
status.json       RUNNING (pid, host), DONE or FAILED (why)
run.json          metrics, choices, parameters by component, speed, memory, time
steps.csv         a row per optimiser step (TITAN Table 5)
curves.png        loss and learning rate
tokenizer/        what evaluation needs, with test.npz
checkpoints/      last.ckpt, best.ckpt
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import socket
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from chimera.compose import ROOT
from chimera.errors import UserError

#: Keys that say where or how visibly a run goes, not what it computes; left out of its hash.
NOT_IDENTITY = (
    "run_dir",
    "overwrite",
    "name",
    "logger",
    "choices.logger",
    "data.cache_dir",
    "data.num_workers",
    "trainer.progress",
    "trainer.log_every_n_steps",
    "trainer.checkpoint_every_n_steps",
)


def identity(config: dict[str, Any]) -> str:
    """Eight hexadecimal digits of a hash of all that decides what a run computes."""
    kept = json.loads(json.dumps(config))
    for key in NOT_IDENTITY:
        node, *rest = key.split(".")
        if rest:
            kept.get(node, {}).pop(rest[0], None)
        else:
            kept.pop(node, None)
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:8]


def write_atomic(path: Path, text: str) -> None:
    """The whole text or, after a crash, the file as it was before."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def write_json(path: Path, value: object) -> None:
    """Pretty JSON, atomically."""
    write_atomic(path, json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n")


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
        """`run_dir=` if given, else `runs/<name>-<hash>`."""
        named = config.get("run_dir")
        return RunDir(
            Path(named) if named else ROOT / "runs" / f"{config['name']}-{identity(config)}"
        )

    def check(self) -> None:
        """Refuse a directory that is there and is no run's.

        Raises:
            UserError: naming it.
        """
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"run_dir={self.path} is a file; name a directory")
        if self.path.is_dir() and any(self.path.iterdir()) and not self.status():
            raise UserError(f"run_dir={self.path} holds other files; name a new or empty directory")

    def status(self) -> dict[str, Any]:
        """The contents of status.json; empty if there is none."""
        file = self.path / "status.json"
        return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}

    def mark(self, state: str, **more: object) -> None:
        """Write status.json: RUNNING, DONE or FAILED."""
        now = datetime.now(UTC).isoformat()
        where = {"pid": os.getpid(), "host": socket.gethostname()}
        write_json(self.path / "status.json", {"state": state, "time": now, **where, **more})

    def start(self, config: dict[str, Any], overrides: list[str]) -> None:
        """Create the directory with all that is known before training."""
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        self.mark("RUNNING")
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
        return loaded

    def record(self) -> dict[str, Any]:
        """What run.json holds; empty before the run is done."""
        file = self.path / "run.json"
        return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}

    def resumable(self) -> Path | None:
        """The checkpoint that an unfinished run continues from."""
        last = self.checkpoints / "last.ckpt"
        return last if self.status() and last.exists() else None


def environment() -> dict[str, Any]:
    """Where and with what the run was made."""
    import torch

    return {
        "python": platform.python_version(),
        "machine": platform.platform(),
        "processor": _processor(),
        "cpus": os.cpu_count(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "git": git_state(),
        "packages": {
            d.metadata["Name"]: d.version
            for d in sorted(
                importlib.metadata.distributions(), key=lambda d: d.metadata["Name"] or ""
            )
        },
    }


def git_state() -> dict[str, Any]:
    """Commit of this project's checkout and whether it was changed; empty outside git."""

    def git(*words: str) -> str | None:
        got = subprocess.run(("git", "-C", str(ROOT), *words), capture_output=True, text=True)
        return got.stdout.strip() if got.returncode == 0 else None

    try:
        commit = git("rev-parse", "HEAD")
    except FileNotFoundError:  # no git on this machine
        return {}
    return {"commit": commit, "changed": bool(git("status", "--porcelain"))} if commit else {}


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def flat(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested configuration as dotted keys, so that a dashboard can group and filter by each."""
    out: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, dict) and value:
            out |= flat(value, f"{prefix}{key}.")
        else:
            out[f"{prefix}{key}"] = value
    return out
