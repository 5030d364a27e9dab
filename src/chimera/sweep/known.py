"""What finished runs on this machine took, for an estimate of runs like them.

The run store's records of this machine count beside the runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chimera.errors import UserError
from chimera.paths import runs_root
from chimera.rundir.directory import RunDir
from chimera.rundir.environment import environment
from chimera.rundir.identity import flatten, identity_settings
from chimera.rundir.plain import read_json
from chimera.rundir.store import beside, check
from chimera.sweep.cost import bytes_saved

#: Settings on which neither the time of a step nor its memory depends.
FREE = (
    *("seed", "numerics", "trainer.max_steps", "optim.lr", "optim.betas", "optim.eps"),
    *("optim.weight_decay", "optim.warmup", "optim.min_ratio", "optim.rates", "optim.decays"),
)
#: Parts of environment.json that say on which machine a run was.
MACHINE = ("processor", "cpus", "gpu")


@dataclass(frozen=True)
class Known:
    """A finished run.

    Args:
        path: its directory.
        steps: optimiser steps.
        seconds: from the first line of its set-up to its record.
        tokens_per_second: in training.
        memory: peak, in bytes.
        checkpoint: bytes of one, of a record in the run store, which has none; else None.
    """

    path: Path
    steps: int
    seconds: float
    tokens_per_second: float
    memory: float
    checkpoint: float | None = None


def likeness(config: dict[str, Any]) -> str:
    """Equal for two configurations whose steps cost the same."""
    settings = flatten(identity_settings(config))
    kept = {k: v for k, v in settings.items() if not k.startswith(FREE)}
    kept |= {"workers": config["data"].get("num_workers"), "guard": config["guard"]}
    return json.dumps(kept, sort_keys=True, default=str)


class KnownRuns:
    """The finished runs below a folder.

    Args:
        root: the folder; None: that of this process, and its run store.
    """

    def __init__(self, root: Path | None = None) -> None:
        self.root = root or runs_root()
        self._stored = [] if root else _checked()
        about = environment()
        self._here = {key: about[key] for key in MACHINE}
        self._records = dict(self._finished())
        self._likeness: dict[Path, str] = {}
        self._like: dict[str, Known | None] = {}

    def like(self, config: dict[str, Any]) -> Known | None:
        """The newest finished run on this machine whose steps cost what this one's do."""
        if (asked := likeness(config)) not in self._like:
            self._like[asked] = self._search(asked, config["choices"])
        return self._like[asked]

    def _search(self, asked: str, choices: dict[str, str]) -> Known | None:
        for path, record in self._records.items():
            if any(record["choices"].get(group) != name for group, name in _parts(choices)):
                continue
            if path not in self._likeness:
                self._likeness[path] = self._read(path)
            if self._likeness[path] == asked:
                return _known(path, record, stored=path in self._stored)
        return None

    @property
    def utilisation(self) -> float | None:
        """Median MFU of the finished runs on this machine; None without one."""
        found = [r["mfu"] for r in self._records.values() if isinstance(r.get("mfu"), float)]
        return sorted(found)[len(found) // 2] if found else None

    def _finished(self) -> Iterator[tuple[Path, dict[str, Any]]]:
        found = []
        runs = list(self.root.iterdir()) if self.root.is_dir() else []
        for path in (*runs, *self._stored):
            try:
                record = RunDir(path).record() if (path / "run.json").is_file() else {}
                about = read_json(path / "environment.json") if record else {}
            except UserError:  # of a damaged run nothing is known
                continue
            here = {key: about.get(key) for key in MACHINE} == self._here
            if here and isinstance(record.get("choices"), dict):
                found.append(((path / "run.json").stat().st_mtime, path, record))
        for _, path, record in sorted(found, key=lambda each: each[0], reverse=True):
            yield path, record

    def _read(self, path: Path) -> str:
        try:
            return likeness(RunDir(path).config())
        except (UserError, KeyError, TypeError):  # of an older release, or damaged
            return ""


def _parts(choices: dict[str, str]) -> list[tuple[str, str]]:
    named = ("task", "data", "mixer", "norm", "quant", "ffn", "position", "adapter")
    return [(group, choices[group]) for group in named if group in choices]


def _checked() -> list[Path]:
    """The records of the run store that count."""
    found = []
    for path in beside(()):
        with suppress(UserError):  # a sweep says why; an estimate does without
            found.append(check(path).path)
    return found


def _known(path: Path, record: dict[str, Any], *, stored: bool) -> Known | None:
    try:
        checkpoint = None
        if stored:
            trained = float(record["trained"]["parameters"])
            checkpoint = bytes_saved(trained, float(record["parameters"]["total"]) - trained)
        return Known(
            path,
            int(record["steps"]),
            float(record["wall_seconds"]),
            float(record["tokens_per_second"]),
            1e9 * float(record["peak_memory_gb"]),
            checkpoint,
        )
    except (KeyError, TypeError, ValueError):  # of a run of one step
        return None
