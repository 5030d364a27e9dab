"""What of a run's directory may be removed, and its removal. Does not import torch.

Of a finished run these are the checkpoints beside the last and the best one; of a run that was left
unfinished long ago the whole directory. Nothing is planned for a run that is being trained, for a
directory that is not a run of Chimera, or for one that holds a link in place of a folder. A removal
is planned again under the run's lock, and only files of both plans are deleted. A whole directory
is first renamed to a temporary name: a kill leaves it as it was, or without its name.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chimera.errors import UserError
from chimera.rundir import checkpoints as files
from chimera.rundir.directory import STATUS, RunDir
from chimera.safe_io import TEMPORARY, expanded, read_json, temporary

#: Paths of files that a run writes, in its directory; a directory with others is never removed.
_OURS = re.compile(
    r"config\.yaml|overrides\.txt|environment\.json|status\.json|run(-\d+)?\.json"
    r"|steps(-\d+)?\.csv|points\.jsonl|validations\.json|curves\.png|test\.npz|log\.txt|\.lock"
    r"|nan_report-\d+(-rank\d+)?\.(json|md|npz)|eval-\d+\.json|(model|samples|settings)\.md"
    r"|(fit|validate|test|sanity_check|predict)-profile(-\d+)?(-\[.*)?(\.\d+)?\.(txt|pt\.trace\.json)"
    r"|(activations|weights|maps|gates)\.png|(last|best)\.ckpt"
    rf"|checkpoints/({files.FILE.pattern}|(last|best)\.ckpt)"
    r"|tokenizer/((tokenizer|huggingface|symbols)\.json|sentencepiece\.model)|body/config\.json"
    r"|adapter/adapter_(config\.json|model\.safetensors)|predictions/[\w-]+\.tsv"
    r"|metrics/(metrics\.csv|hparams\.yaml)|tensorboard/(events\.out\.tfevents\.[^/]*|hparams\.yaml)"
    r"|wandb/(id|latest-run|debug(-internal)?\.log|wandb-resume\.json|(earlier/)?(offline-)?run-\d+_\d+-.*)"
    rf"|([^/]*/)?{TEMPORARY.pattern}(/.*)?"
)
#: Keys that every config.yaml of a run has.
_KEYS = {"choices", "trainer", "task", "model", "data", "seed"}
DAY = 86_400.0
LOCK = ".lock"


@dataclass(frozen=True)
class Removal:
    """Files of a run that may go.

    Args:
        run: its directory.
        files: to be deleted.
        kept: names of checkpoints that stay; empty where the whole directory goes.
        why: in a few words.
    """

    run: Path
    files: tuple[Path, ...]
    kept: tuple[str, ...]
    why: str

    @property
    def size(self) -> int:
        """Bytes on disk that are free afterwards; a file with another name outside stays."""
        return freed(self.files)


def plan(run: Path, *, days: float | None = None, named: Collection[Path] = ()) -> Removal | None:
    """What may be removed of a run; None if nothing.

    Args:
        run: any directory.
        days: an unfinished run that nothing has written to for so many days goes; None: none goes.
        named: checkpoints that other runs start from; they stay.
    """
    directory = RunDir(run)
    if not _is_ours(directory) or directory.is_running():
        return None
    state = directory.status().get("state")
    if state == "DONE":
        try:
            return _surplus(directory, named)
        except UserError:  # its record cannot be read
            return None
    if days is None or state not in ("RUNNING", "STOPPED", "FAILED"):
        return None
    return _stale(directory, days, named)


def remove(removal: Removal, *, days: float | None = None, named: Collection[Path] = ()) -> int:
    """Delete what is still to be deleted, under the run's lock; returns the bytes that are free.

    Args:
        removal: of `plan`.
        days, named: as of `plan`.

    Raises:
        UserError: the run is being trained by now.
    """
    directory = RunDir(removal.run)
    if not _is_ours(directory):
        return 0
    directory.lock()
    try:
        again = plan(removal.run, days=days, named=named)
        if again is None or again.why != removal.why:
            return 0
        planned = {*removal.files, removal.run / LOCK}
        going = [file for file in again.files if file in planned]
        size = freed(going)
        if not again.kept:
            return size if _remove_whole(removal.run, planned) else 0
        for file in going:
            with contextlib.suppress(FileNotFoundError):
                file.unlink()
    finally:
        directory._lock.close()
    return size


def starting_points(config: dict[str, Any]) -> set[Path]:
    """Files that a run names as its start, `ckpt_path=` and `init_from=`, with links resolved."""
    named = (config.get(key) for key in ("ckpt_path", "init_from"))
    return {expanded(text).resolve() for text in named if isinstance(text, str)}


def freed(paths: Collection[Path]) -> int:
    """Bytes that are free once all these names are gone."""
    names: dict[tuple[int, int], list[os.stat_result]] = {}
    for path in paths:
        with contextlib.suppress(OSError):
            about = path.lstat()
            names.setdefault((about.st_dev, about.st_ino), []).append(about)
    return sum(found[0].st_size for found in names.values() if found[0].st_nlink <= len(found))


def _is_ours(directory: RunDir) -> bool:
    """Whether a directory, which is no link, holds a run of Chimera."""
    path = directory.path
    if path.is_symlink() or not path.is_dir() or not (path / "config.yaml").is_file():
        return False
    if directory.checkpoints.is_symlink() or (path / "status.json").is_symlink():
        return False
    try:
        status = directory.status()
        config = directory.config()
    except UserError:
        return False
    return set(status) >= STATUS and set(config) >= _KEYS and isinstance(config["choices"], dict)


def _surplus(directory: RunDir, named: Collection[Path]) -> Removal | None:
    """The checkpoints of a finished run beside the last and the best one."""
    folder = directory.checkpoints
    if not folder.is_dir() or "metrics" not in read_json(directory.path / "run.json"):
        return None
    kept = {path.name for path in files.tier(folder, "rolling")[-1:]}
    kept |= {path.name for _, path in files.best(folder)[:1]}
    for link in (folder / "last.ckpt", folder / "best.ckpt"):
        if link.is_symlink():
            kept.add(os.readlink(link))
        elif link.exists():  # on a file system without links it may be the checkpoint itself
            return None
    if not any((folder / name).is_file() for name in kept):
        return None
    kept |= {path.name for path in named if path.parent == folder.resolve()}
    going = [
        file
        for file in sorted(folder.iterdir())
        if (files.FILE.fullmatch(file.name) and not file.name.startswith("broken"))
        or TEMPORARY.fullmatch(file.name)
        if file.name.removesuffix(".json") not in kept
        if not file.is_symlink() and file.is_file()
    ]
    names = tuple(sorted(name for name in kept if (folder / name).is_file()))
    return Removal(directory.path, tuple(going), names, "done") if going else None


def _stale(directory: RunDir, days: float, named: Collection[Path]) -> Removal | None:
    """The whole directory of an unfinished run, if all of it is ours and old."""
    everything = list(_walk(directory.path))
    if any(not _OURS.fullmatch(str(file.relative_to(directory.path))) for file in everything):
        return None
    inside = directory.path.resolve()
    if any(path == inside or inside in path.parents for path in named):
        return None
    newest = max(path.lstat().st_mtime for path in everything if path.name != LOCK)
    if time.time() - newest < days * DAY:
        return None
    state = str(directory.status().get("state")).lower()
    age = f"{state}, {(time.time() - newest) / DAY:.0f} days old"
    return Removal(directory.path, tuple(everything), (), age) if everything else None


def _walk(folder: Path) -> Iterator[Path]:
    """All files and links below a folder; no link is followed."""
    for where, folders, names in os.walk(folder, followlinks=False):
        inside = [*names, *(name for name in folders if (Path(where) / name).is_symlink())]
        yield from (Path(where) / name for name in inside)


def _remove_whole(folder: Path, planned: Collection[Path]) -> bool:
    """Remove a folder with nothing but planned files in it; with others it stays as it is."""
    gone = temporary(folder)
    folder.rename(gone)
    if any(folder / file.relative_to(gone) not in planned for file in _walk(gone)):
        gone.rename(folder)
        return False
    shutil.rmtree(gone, ignore_errors=True)
    return True
