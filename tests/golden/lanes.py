"""Where golden runs happen: the base commit's tree, work folders, server processes, a cache."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from chimera.rundir.environment import first_core
from tests.golden import inputs
from tests.golden.combinations import ROOT, Combination, sources

HERE = Path(__file__).resolve().parent
#: The code that this one has to agree with.
BASE = "9205fef9f639f01c5143cf4dca9ac7a4f5eeec30"
#: Of processors, what decides which kernels are taken.
KINDS = ("avx", "amx", "fma", "sse")


def cache() -> Path:
    """Where worktrees and results of base commits are kept."""
    return Path(os.environ.get("CHIMERA_GOLDEN") or Path.home() / ".cache" / "chimera-golden")


def machine() -> dict[str, str]:
    """What the last bit of a number depends on."""
    import torch

    facts = first_core()
    family = "-".join(facts.get(key, "?") for key in ("cpu family", "model", "stepping"))
    kinds = sorted(flag for flag in facts.get("flags", "").split() if flag.startswith(KINDS))
    return {
        "cpu": f"{facts.get('model name', platform.processor())} ({family})",
        "instructions": hashlib.sha256(" ".join(kinds).encode()).hexdigest()[:8],
        "torch": torch.__version__,
        "threads": "1",
    }


def commit_of(revision: str) -> str:
    """The whole hash of a revision of this repository."""
    return _git("rev-parse", "--verify", f"{revision}^{{commit}}")


def worktree(commit: str) -> Path:
    """A checkout of a commit, made once."""
    place = cache() / "trees" / commit
    if not (place / "train.py").exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        _git("worktree", "prune")
        _git("worktree", "add", "--force", "--detach", str(place), commit)
    return place


def _git(*words: str) -> str:
    done = subprocess.run(("git", "-C", str(ROOT), *words), capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"git {words[0]}: {done.stderr.strip()}")
    return done.stdout.strip()


class Lane:
    """One folder with the inputs, and one server process that works through units in it.

    Args:
        label: in what is printed.
        tree: whose code runs.
        folder: is made anew.
        given: what lies in it at first, as the folder of `inputs.make`.
        jobs: see `job`.
        preload: whether runs are forks of a process that has the libraries imported already.
    """

    def __init__(
        self,
        label: str,
        tree: Path,
        folder: Path,
        given: Path,
        jobs: Sequence[dict[str, Any]],
        *,
        preload: bool = True,
    ) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(given, folder, symlinks=True)
        self.file = folder / "jobs.json"
        task = {"label": label, "tree": str(tree), "folder": str(folder)}
        self.file.write_text(json.dumps({**task, "preload": preload, "jobs": list(jobs)}))
        environment = os.environ | {
            "PYTHONPATH": str(tree / "src"),
            "CHIMERA_CACHE": str(folder / "cache"),
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "WANDB_MODE": "offline",
            "COLUMNS": "120",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        environment.pop("CHIMERA_RUNS", None)
        self.wait = self.start(str(self.file), folder, environment)

    def start(self, file: str, folder: Path, environment: dict[str, str]) -> Callable[[], int]:
        """Start the server; return a function that waits for its end and gives its exit code."""
        words = (sys.executable, str(HERE / "serve.py"), file)
        return subprocess.Popen(words, env=environment, cwd=folder).wait

    def results(self) -> dict[str, dict[str, Any]]:
        """What all its runs came to, by name."""
        if code := self.wait():
            sys.exit(f"the server of {self.file.parent} ended with {code}")
        lines = self.file.with_suffix(".results").read_text(encoding="utf-8").splitlines()
        return {found["name"]: found for found in map(json.loads, lines)}


def job(one: Combination) -> dict[str, Any]:
    """What a server needs to know of a combination; `line` None stands for no training."""
    place = one.name if one.name in sources() else None
    line = [*one.line, *([f"run_dir={place}"] if place else [])]
    return {
        "name": one.name,
        "line": line,
        "directory": place,
        "signal": one.signal,
        "rows": one.rows,
        "then": [list(words) for words in one.then],
    }


class Kept:
    """Results of a commit on this machine: a file each, named by command line and inputs."""

    def __init__(self, commit: str, given: str) -> None:
        kind = hashlib.sha256(json.dumps(machine()).encode()).hexdigest()[:8]
        self.folder = cache() / "results" / f"{commit[:12]}-{kind}"
        self.given = given

    def read(self, one: Combination) -> dict[str, Any] | None:
        """The result of a combination, if it was run before."""
        file = self._file(one)
        return json.loads(file.read_text(encoding="utf-8")) if file.exists() else None

    def write(self, one: Combination, found: dict[str, Any]) -> None:
        """Keep a result."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._file(one).write_text(json.dumps(found), encoding="utf-8")

    def _file(self, one: Combination) -> Path:
        code = [(HERE / name).read_text() for name in ("serve.py", "gather.py")]
        key = json.dumps([job(one), self.given, code])
        return self.folder / f"{one.name}-{hashlib.sha256(key.encode()).hexdigest()[:12]}.json"


def given(folder: Path) -> tuple[Path, str]:
    """The inputs, made in a folder, and their hash."""
    made = inputs.make(folder)
    return made, inputs.digest(made)
