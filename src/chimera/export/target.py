"""Check what an export may replace, and replace it in one step.

An export goes to a new or empty place, or takes the place of an earlier export that nobody has
changed. To know this, a folder lists the hashes of its files (`export.json`), and a GGUF file holds
its own hash. The new export is written beside the place and renamed when it is complete. A process
that is killed leaves the earlier export or the new one, whole; between two renames the earlier one
is called `.<name>.earlier`, and the next export puts it back.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from chimera.errors import UserError
from chimera.program import VERSION
from chimera.rundir.tensors import load_tensors
from chimera.safe_io import make_folder, read_json, remove_temporary, temporary, write_json

#: The list of a folder's files.
LIST = "export.json"
#: Key of a GGUF file with the hash of all its other bytes, found among the first ones.
SEAL = "chimera.sha256"
UNSEALED = "0" * 64
BEGINNING = 1 << 16


def check_target(to: Path) -> None:
    """Refuse a folder that holds anything but an earlier export as it was written.

    Raises:
        UserError: it is a link or a file, lies below one, or holds other files.
    """
    here = Path.cwd()
    if to.resolve() in (here, *here.parents):
        raise UserError(f"to={to} is or holds the working directory; name a new or empty folder")
    _check_link(to)
    nearest = next(folder for folder in (to, *to.absolute().parents) if folder.exists())
    if not nearest.is_dir():
        raise UserError(f"to={to}: {nearest} is a file; name a new or empty folder")
    other = next(_others(to), None)
    if other:
        raise UserError(
            f"to={to} contains {other}, which no export wrote or which has changed since; name a"
            " new or empty folder"
        )


def check_file(to: Path) -> None:
    """Refuse a path that is anything but a new file or an earlier GGUF file as it was written.

    Raises:
        UserError: it is a link, a folder, or another file.
    """
    _check_link(to)
    if to.is_dir():
        raise UserError(f"to={to} is a folder; name a new file that ends in .gguf")
    if to.exists() and not (to.is_file() and len(set(_seals(to))) == 1):
        raise UserError(f"to={to} is no file of an export, or was changed since; name a new one")


@contextlib.contextmanager
def replacing_folder(to: Path) -> Iterator[Path]:
    """Yield a folder to write to, which takes the place of `to` unless an error ends it.

    Raises:
        UserError: it cannot be made, or `to` holds other files by now.
    """
    place = temporary(to)
    shutil.rmtree(place, ignore_errors=True)  # of a killed process with the same number
    made = place / "new"
    make_folder(made, of=to, key="to")
    earlier = to.with_name(f".{to.name}.earlier")
    try:
        if earlier.exists():  # a process was killed between two of the renames below
            check_target(earlier)
            os.rename(earlier, place / "left" if to.exists() else to)
        yield made
        _write_list(made)
        check_target(to)
        if to.exists():
            shutil.copymode(to, made)
            os.rename(to, earlier)
        os.rename(made, to)
    except BaseException:
        if earlier.exists() and not to.exists():
            os.rename(earlier, to)
        raise
    else:
        if earlier.exists():
            os.rename(earlier, place / "old")
    finally:
        shutil.rmtree(place)
        remove_temporary(to.parent)


def seal(file: Path) -> None:
    """Put the hash of a GGUF file into its key `SEAL`, which has to be `UNSEALED`."""
    with file.open("r+b") as opened:
        opened.seek(opened.read(BEGINNING).index(UNSEALED.encode()))
        opened.write(_seals(file)[1].encode())
        opened.flush()
        os.fsync(opened.fileno())


def _seals(file: Path) -> tuple[str, str]:
    """The hash that a GGUF file holds, empty where it holds none, and the hash of its other bytes.

    Behind its name a key has a type of 4 bytes and a length of 8.
    """
    with file.open("rb") as opened:
        start, name, rest = opened.read(BEGINNING).partition(SEAL.encode())
        digest = hashlib.sha256(start + name + rest[:12] + rest[12 + len(UNSEALED) :])
        own = hashlib.file_digest(opened, lambda: digest).hexdigest()
    return rest[12 : 12 + len(UNSEALED)].decode(errors="replace"), own


def _check_link(to: Path) -> None:
    if to.is_symlink():
        raise UserError(f"to={to} is a link; name the place that it leads to")


def _others(folder: Path) -> Iterator[str]:
    """What a folder contains that no export wrote, or that has changed since."""
    about = read_json(folder / LIST)
    files = about.get("files")
    known = files if "chimera_lm" in about and isinstance(files, dict) else {}
    folders = {str(above) for name in known for above in PurePosixPath(name).parents}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink() or not path.is_file():
            own = path.is_dir() and not path.is_symlink() and name in folders
        else:
            own = bool(known) and (name == LIST or known.get(name) == _digest(path))
        if not own:
            yield name


def _write_list(folder: Path) -> None:
    """Write the list of a complete folder, whose files are then on the disk."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    for path in files:
        if path.suffix == ".safetensors":
            load_tensors(path)
    hashes = {path.relative_to(folder).as_posix(): _digest(path) for path in files}
    write_json(folder / LIST, {"chimera_lm": VERSION, "files": hashes})


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        os.fsync(opened.fileno())
        return hashlib.file_digest(opened, "sha256").hexdigest()
