"""Index of the runs below a folder: what command lines compose to, which directories are theirs.

Composing takes tens of milliseconds, so a sweep or a report over a thousand runs would take half a
minute before it reads the first result. `.index.json` keeps, for each command line, the
configuration and its identity, until a file of the configuration or of the code changes. It holds
no result: states and metrics are always read from the files of the runs.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from chimera.paths import PACKAGE, runs_root
from chimera.rundir.directory import RunDir
from chimera.rundir.extend import was_extended
from chimera.rundir.identity import identity
from chimera.rundir.records import Record, Records
from chimera.rundir.safe_io import write_atomic

#: Name of the index below the folder of all runs.
FILE = ".index.json"
#: Most command lines that are kept; the oldest go first.
MOST = 10_000


class RunIndex:
    """The runs below one folder.

    Args:
        folders: of the configuration; a change in them makes the index stale.
        root: folder of all runs; None: the one of this process.
    """

    def __init__(self, folders: Iterable[Path], root: Path | None = None) -> None:
        self.root = root or runs_root()
        self.state = code_state(folders)
        self._composed: dict[str, list[Any]] = {}
        self._changed = False
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
            kept = _read(self.root / FILE, str(stamp(self.root / FILE)))
            if kept["state"] == self.state:
                self._composed = dict(kept["composed"])
        self._names = _names(self.root)
        self.records = Records()

    def config(
        self, overrides: Sequence[str], compose: Callable[[list[str]], dict[str, Any]]
    ) -> tuple[dict[str, Any], str]:
        """Configuration and identity of a command line.

        Args:
            overrides: of the command line.
            compose: composes them if the index does not know them.
        """
        key = _key(overrides)
        if key in self._composed:
            config, digits = self._composed[key]
            return config, digits
        config = compose(list(overrides))
        self.add(overrides, config)
        return config, identity(config)

    def add(self, overrides: Sequence[str], config: dict[str, Any]) -> None:
        """Keep what a command line composes to, unless other files than YAML have a say in it."""
        if (key := _key(overrides)) in self._composed:
            return
        elsewhere = config.get("init_from") or config.get("ckpt_path")
        elsewhere = elsewhere or (config.get("task") or {}).get("teacher")
        machine = any("${oc." in text or text == "precision=auto" for text in overrides)
        if not elsewhere and not machine:
            self._composed[key] = [config, identity(config)]
            self._changed = True

    def directory(self, config: dict[str, Any], digits: str) -> RunDir:
        """`RunDir.of`, from one listing of the folder for all runs.

        Raises:
            UserError: a name that would be a path.
        """
        names = self._names.get(digits, [])
        if config.get("run_dir") or len(names) != 1 or was_extended(self.root / names[0]):
            return RunDir.of(config)
        return RunDir(self.root / names[0])

    def record(self, config: dict[str, Any], digits: str, directory: RunDir) -> Record | None:
        """The record of a run that is not finished in its directory; None if there is none."""
        done = directory.status().get("state") == "DONE"
        return None if done else self.records.find(config, digits)

    def finished(self, config: dict[str, Any], directory: RunDir) -> bool:
        """Whether the run is done in a directory with its identity in the name."""
        if config["overwrite"] or config.get("extend") or config.get("run_dir"):
            return False
        return directory.status().get("state") == "DONE"

    def save(self) -> None:
        """Write the index; a folder that cannot be written has none."""
        if not self._changed or not self.root.is_dir():
            return
        kept = {"state": self.state, "composed": dict(list(self._composed.items())[-MOST:])}
        with contextlib.suppress(OSError, TypeError):
            write_atomic(self.root / FILE, json.dumps(kept))
        self._changed = False


@lru_cache(maxsize=1)  # a report opens the index twice
def _read(file: Path, stamp: str) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


def _key(overrides: Sequence[str]) -> str:
    """The command line with its assignments sorted: their order has no effect, that of `+` has."""
    adding = [text for text in overrides if text[:1] in "+~"]
    assigned = [text for text in overrides if text[:1] not in "+~"]
    distinct = len({text.partition("=")[0] for text in assigned}) == len(assigned)
    return json.dumps([*adding, *(sorted(assigned) if distinct else assigned)])


def _names(root: Path) -> dict[str, list[str]]:
    """Directories of runs by the identity at the end of their names."""
    names: dict[str, list[str]] = {}
    for path in sorted(root.iterdir()) if root.is_dir() else ():
        names.setdefault(path.name.rpartition("-")[2], []).append(path.name)
    return names


def code_state(folders: Iterable[Path] = ()) -> str:
    """Hash of size and time of this package's sources, and of what is composed from folders."""
    kinds = ("*.yaml", "*.rates.csv")
    files = [f for folder in folders for kind in kinds for f in sorted(folder.rglob(kind))]
    stamps = [(str(f), stamp(f)) for f in (*files, *sorted(PACKAGE.rglob("*.py")))]
    versions = [version(name) for name in ("hydra-core", "omegaconf")]
    return hashlib.sha256(json.dumps([stamps, versions]).encode()).hexdigest()


def stamp(file: Path) -> list[int] | None:
    """Size and time of change of a file; None without the file."""
    try:
        stat = file.stat()
    except OSError:
        return None
    return [stat.st_size, stat.st_mtime_ns]
