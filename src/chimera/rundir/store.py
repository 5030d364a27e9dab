"""The run store: records of finished runs in a folder for git, which count as finished runs.

store/<name>-<identity>/
  config.yaml       resolved configuration, without logger, launcher and places
  overrides.txt     the command line, without these
  environment.json  machine, commit, versions of the packages that compute
  run.json          metrics, choices, parameters by component, speed, memory, time
  steps.csv         means over equal stretches of the training
  status.json       DONE, and a checksum of each file above

Tables, sweeps, comparisons and `ch.runs` read it beside `runs/`. It has weights only where they
were asked for (`kept_weights`). Its files may be a stranger's: they are read as plain values, a
class that they name is never imported, and a record that does not fit its checksums, its name or
this version's numerics does not count.
"""

from __future__ import annotations

import hashlib
import stat
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from chimera.errors import UserError, one_line
from chimera.paths import store_root
from chimera.rundir.directory import RunDir
from chimera.rundir.identity import NUMERICS, differences, identity, numerics_of

#: Files of a record that have a checksum in its status.json.
FILES = ("config.yaml", "overrides.txt", "environment.json", "run.json", "steps.csv")
STATUS = "status.json"
#: Key of status.json that tells a record from a run.
STORED = "stored"
#: Bytes of a file; a larger one is of no record.
LARGEST = 1 << 20
#: Lines on records that do not count which one command prints.
MOST_LINES = 5
_told: set[str] = set()


def is_stored(directory: RunDir) -> bool:
    """Whether a directory is a record of a store."""
    return STORED in directory.status()


def intact(path: Path) -> RunDir:
    """The record in a directory, which is what was stored.

    Raises:
        UserError: files are missing, links, too large, unreadable, or differ from their checksums.
    """
    if path.is_symlink():
        raise UserError(f"{path} is a link; a store holds the directories themselves")
    for name in (*FILES, STATUS):
        _check_file(path / name)
    directory = RunDir(path)
    status = directory.status()
    stored = status.get(STORED)
    sums = stored.get("sha256") if isinstance(stored, dict) else None
    if status.get("state") != "DONE" or not isinstance(sums, dict):
        raise UserError(f"{path / STATUS} is of no stored record")
    for name in FILES:
        if sums.get(name) != digest(path / name):
            raise UserError(
                f"{path / name} is not what was stored; restore it, or add the run anew"
            )
    metrics = directory.record().get("metrics")
    if not isinstance(metrics, dict) or not all(_is_number(value) for value in metrics.values()):
        raise UserError(f"{path / 'run.json'} has no metrics")
    return directory


def check(path: Path) -> RunDir:
    """The record in a directory: of the run that its name says, of this version's numerics.

    Raises:
        UserError: it does not count; the line names it and says why.
    """
    directory = intact(path)
    config, record = directory.config(), directory.record()
    try:
        digits, number = identity(config), numerics_of(config)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{path / 'config.yaml'} is of no run") from error
    if number != NUMERICS:
        raise UserError(f"{path} is of numerics {number}, and this version computes {NUMERICS}")
    if not digits == record.get("identity") == path.name.rpartition("-")[2]:
        raise UserError(f"{path} has settings of another run, {digits}")
    return directory


def record_of(name: str) -> RunDir | None:
    """The record in this process's store of a run's directory, by its name; None if none counts."""
    path = store_root() / name
    try:
        return check(path) if path.is_dir() else None
    except UserError:
        return None


class Store:
    """The records of one store.

    Args:
        root: of the store; None: that of this process.
        passed: (size, time) of the files of records that passed `check`, by path; it is added to.

    Attributes:
        refused: why a record that was looked for does not count.
        others: how records of the same row, or of the same choices in other numerics, differ from
            what was looked for.
    """

    def __init__(self, root: Path | None = None, passed: dict[str, Any] | None = None) -> None:
        self.root = root or store_root()
        self.passed = {} if passed is None else passed
        self.refused: dict[Path, str] = {}
        self.others: dict[Path, str] = {}
        self._found: set[Path] = set()
        self._configs: dict[Path, dict[str, Any] | None] = {}
        self._names: dict[str, list[Path]] = {}
        self._of_name: dict[str, list[Path]] = {}
        for path in paths(self.root):
            name, _, digits = path.name.rpartition("-")
            self._names.setdefault(digits, []).append(path)
            self._of_name.setdefault(name, []).append(path)

    def find(self, config: dict[str, Any], digits: str) -> RunDir | None:
        """The record of a configuration's run; None if no record of it counts.

        Args:
            config: resolved.
            digits: its identity.
        """
        if not self._names or config["overwrite"] or config.get("extend") or config.get("run_dir"):
            return None
        for path in self._passing(digits):
            self._found.add(path)
            return RunDir(path)
        self._look_for_others(config, digits)
        return None

    def tell(self) -> None:
        """Say on standard error which records do not count, each once in a process."""
        lines = [f"not counted: {one_line(why)}" for why in self.refused.values()]
        rest = len(lines) - MOST_LINES
        if rest > 0:
            lines[MOST_LINES:] = [f"not counted: {rest} more records of {self.root}"]
        others = [path for path in self.others if path not in self._found | self.refused.keys()]
        if others:
            count = f"{len(others)} record{'s' * (len(others) != 1)}"
            first = f"{others[0].name}: {one_line(self.others[others[0]])}"
            lines.append(f"not counted: {count} in {self.root} of other settings, such as {first}")
        for line in lines:
            if line not in _told:
                _told.add(line)
                print(line, file=sys.stderr)

    def _passing(self, digits: str) -> list[Path]:
        return [path for path in self._names.get(digits, ()) if self._passes(path)]

    def _passes(self, path: Path) -> bool:
        if path in self.refused:
            return False
        stamps = [_stamp(path / name) for name in (*FILES, STATUS)]
        if self.passed.get(str(path)) == stamps:
            return True
        try:
            check(path)
        except UserError as error:
            self.refused[path] = str(error)
            return False
        self.passed[str(path)] = stamps
        return True

    def _look_for_others(self, config: dict[str, Any], digits: str) -> None:
        """Note records that a reader would take for this one: of the row, or of other numerics."""
        for path in self._of_name.get(config["name"], ()):
            other = self._config(path)
            if other is None or path.name.endswith(digits) or not _alike(other, config):
                continue
            there, here = numerics_of(other), numerics_of(config)
            if there != here:
                self.others[path] = f"numerics {there} there, {here} here"
            elif config.get("table"):
                self.others[path] = "; ".join(differences(other, config)[:2])

    def _config(self, path: Path) -> dict[str, Any] | None:
        """The configuration of a record, read once; None where it is of no run."""
        if path not in self._configs:
            self._configs[path] = None
            try:
                _check_file(path / "config.yaml")
                config = RunDir(path).config()
                identity(config)
                if isinstance(config["choices"], dict):
                    self._configs[path] = config
            except (UserError, KeyError, TypeError, ValueError, AttributeError):
                pass
        return self._configs[path]


def paths(root: Path) -> list[Path]:
    """Directories of the records of a store, sorted by name."""
    return sorted(p for p in root.iterdir() if (p / STATUS).is_file()) if root.is_dir() else []


def beside(runs: Iterable[Path], root: Path | None = None) -> list[Path]:
    """Records of runs that are not finished in any of these directories.

    Args:
        runs: directories of runs.
        root: of the store; None: that of this process.
    """
    names = {run.name: run for run in runs}
    found = []
    for path in paths(root or store_root()):
        own = names.get(path.name)
        if own is None or RunDir(own).status().get("state") != "DONE":
            found.append(path)
    return found


def digest(file: Path) -> str:
    """SHA-256 of a text file, whose lines git may have given other ends."""
    return hashlib.sha256(file.read_bytes().replace(b"\r\n", b"\n")).hexdigest()


def _check_file(file: Path) -> None:
    try:
        about = file.lstat()
    except OSError as error:
        raise UserError(f"{file} is missing") from error
    if not stat.S_ISREG(about.st_mode):
        raise UserError(f"{file} is no file")
    if about.st_size > LARGEST:
        raise UserError(f"{file} has {about.st_size:,} bytes; a record has at most {LARGEST:,}")


def _alike(other: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    """Whether two runs agree in seed, table, row, and every choice that both have."""
    first, second = other["choices"], config["choices"]
    same = all(first[group] == second[group] for group in first.keys() & second.keys())
    return same and all(other.get(key) == config.get(key) for key in ("seed", "table"))


def _stamp(file: Path) -> list[int]:
    try:
        about = file.lstat()
    except OSError:
        return []
    return [about.st_size, about.st_mtime_ns]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
