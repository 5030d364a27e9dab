"""Read and write files safely: plain values of a stranger's YAML or JSON, whole files or none.

Every file is first written under a temporary name beside it,
`.<name>.<process>-<thread>-<host>.tmp`. What a killed process of this host has left goes when the
next file is written in its folder.

A YAML file may build no objects and repeat no node by an alias, so that no few bytes become
gigabytes; neither kind may nest deeper than any configuration does.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import socket
import stat
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any

import yaml

from chimera.errors import FULL, UserError

#: Levels of mappings and lists that a file may nest.
DEEPEST = 40
#: Names of temporary files, see above, with process and host; one without a host is of this one.
TEMPORARY = re.compile(r"\..+\.(\d+)-\d+(?:-(\d+))?\.tmp")
#: This host in such a name: the checksum of its name, which is short.
HOST = str(zlib.crc32(socket.gethostname().encode()))
#: The C library is eight times as fast; PyYAML may have been built without it.
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def expanded(path: str | Path) -> Path:
    """A path with the home of a user in place of `~` or `~user`.

    Raises:
        UserError: there is no such user.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise UserError(f"{path}: this machine has no such user; write ./~… for a file") from error


def read_text(file: Path, errors: str = "strict") -> str:
    """The text of a regular file; a pipe or a device would be waited for without end.

    Raises:
        OSError: there is none, or it cannot be read.
    """
    if not stat.S_ISREG(file.stat().st_mode):
        raise OSError(errno.EINVAL, "it is no regular file", str(file))
    return file.read_text(encoding="utf-8", errors=errors)


def read_yaml(file: Path, *, own: bool = False) -> dict[str, Any]:
    """The mapping in a YAML file.

    Args:
        file: any.
        own: no stranger wrote the file; it may repeat a node by an alias, and hold nothing.

    Raises:
        UserError: it holds something else than plain values.
    """
    try:
        text = read_text(file)
        if not own:
            _check_events(file, text)
        loaded = yaml.load(text, LOADER)
    except UserError:  # which is a ValueError
        raise
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise _unreadable(file, error) from error
    return _mapping(file, {} if own and loaded is None else loaded)


def read_json(file: Path) -> dict[str, Any]:
    """The mapping in a JSON file; empty where there is no file.

    Raises:
        UserError: it holds something else.
    """
    try:
        text = read_text(file)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise _unreadable(file, error) from error
    return parse_json(text, str(file))


def parse_json(text: str | bytes, where: str) -> dict[str, Any]:
    """The mapping in a JSON text.

    Args:
        text: any.
        where: it was read, for the message.

    Raises:
        UserError: it holds something else.
    """
    try:
        loaded = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _unreadable(where, error) from error
    return _mapping(where, loaded)


def check_fields(
    values: Mapping[str, Any], kinds: Mapping[str, type | tuple[type, ...]], where: object
) -> None:
    """Check that values from a file have the fields that are read, with their types.

    Args:
        values: of a JSON or YAML file.
        kinds: types by field; true and false are no numbers.
        where: they were read, for the message.

    Raises:
        UserError: naming the first field that is missing or of another type.
    """
    for name, kind in kinds.items():
        value = values.get(name)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise UserError(f"{where} has no {name}; restore the file")


def _check_events(file: Path, text: str) -> None:
    """Refuse aliases and depth before nodes are built: the C library recurses on its own stack.

    Raises:
        UserError: the file nests too deep, or is a list.
    """
    depth = 0
    for event in yaml.parse(text, LOADER):
        if not depth and isinstance(event, yaml.SequenceStartEvent):
            raise UserError(f"{file} holds no mapping of keys to values")
        if isinstance(event, yaml.AliasEvent):
            raise yaml.composer.ComposerError(None, None, "it repeats a node by an alias")
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            raise UserError(f"{file} nests more than {DEEPEST} levels deep")


def _mapping(file: Path | str, loaded: Any) -> dict[str, Any]:
    if not isinstance(loaded, dict):
        raise UserError(f"{file} holds no mapping of keys to values")
    level: list[Any] = [loaded]
    depth = 0
    while level:
        depth += 1
        inner = (each.values() if isinstance(each, dict) else each for each in level)
        level = [value for values in inner for value in values if isinstance(value, dict | list)]
        if depth > DEEPEST:
            raise UserError(f"{file} nests more than {DEEPEST} levels deep")
    return loaded


def _unreadable(file: Path | str, error: BaseException) -> UserError:
    why = " ".join(str(error).split())[:200] or type(error).__name__
    return UserError(f"{file} cannot be read: {why}")


def sha256_of(file: Path) -> str:
    """Hash of a file's contents."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def temporary(path: Path) -> Path:
    """A name beside a file that no other process or thread writes to."""
    return path.with_name(f".{path.name}.{os.getpid()}-{threading.get_native_id()}-{HOST}.tmp")


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary name; the file written there replaces `path`, unless an error ends it."""
    written = temporary(path)
    with contextlib.suppress(OSError):  # of a folder that cannot be written the next line speaks
        remove_temporary(path.parent)
    try:
        yield written
        os.replace(written, path)
    finally:
        written.unlink(missing_ok=True)


def remove_temporary(folder: Path, *, locked: bool = False) -> None:
    """Remove what killed processes of this host were writing in a folder.

    Args:
        folder: any.
        locked: no other process writes there, so what those of other hosts were writing goes, too.
    """
    for entry in os.scandir(folder):
        match = TEMPORARY.fullmatch(entry.name)
        if match is None or not (locked or _has_ended(int(match[1]), match[2])):
            continue
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry, ignore_errors=True)
        else:
            Path(entry).unlink(missing_ok=True)


def _has_ended(pid: int, host: str | None) -> bool:
    """Whether a process of a temporary name is of this host and has ended."""
    if host not in (None, HOST):
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return True
    except OSError:  # another user's
        return False
    return False


def write_atomic(path: Path, content: str | bytes) -> None:
    """Write a file; after a crash or on a full disk the old file is unchanged."""
    with replacing(path) as written, written.open("wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())


class LineLog:
    """A file that grows by lines, each on disk when `write` returns, whatever happens next.

    It is cut in place, so lines that count are never anywhere but on disk. It has no buffer: on a
    full disk a line is there or not, and nothing is left to fail at the end.

    Args:
        path: of the file, which may be there.
        counts: whether a line stays; the file ends before the first that does not, and before a
            last line that was torn by a kill.
    """

    def __init__(self, path: Path, counts: Callable[[bytes], bool]) -> None:
        self.file = path.open("r+b" if path.exists() else "w+b", buffering=0)
        self.kept = list(takewhile(counts, self.file.read().split(b"\n")[:-1]))
        self.end = sum(len(line) + 1 for line in self.kept)
        self.file.truncate(self.end)
        self.file.seek(self.end)

    def write(self, line: str) -> None:
        """Append a line.

        Raises:
            OSError: the disk is full; the file is as before.
        """
        data = f"{line}\n".encode()
        try:
            if self.file.write(data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.file.name)
        except OSError:
            self.file.truncate(self.end)
            raise
        self.end += len(data)

    def close(self) -> None:
        """No line is written after this."""
        self.file.close()


def write_json(path: Path, value: object) -> None:
    """Write indented JSON atomically."""
    write_atomic(path, json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n")


def make_folder(folder: Path, *, of: Path, key: str = "run_dir") -> None:
    """Make a folder and those above it.

    Args:
        folder: to make.
        of: directory that was named on the command line.
        key: by which it was named.

    Raises:
        UserError: the system does not allow it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if error.errno in FULL:
            raise
        why = "it is a link to nothing" if folder.is_symlink() else error.strerror
        raise UserError(
            f"{key}={of} cannot be made ({why}); name a folder that you may write to"
        ) from error


def check_place(folder: Path, *, key: str = "run_dir") -> None:
    """Refuse a folder that is not there and cannot be made; nothing is left behind.

    Args:
        folder: that will be made.
        key: by which it was named.

    Raises:
        UserError: naming the file above it, or what the system says.
    """
    if folder.exists():
        return
    if folder.is_symlink():
        make_folder(folder, of=folder, key=key)  # says why it cannot
    above = next(parent for parent in folder.absolute().parents if parent.exists())
    if not above.is_dir():
        raise UserError(f"{key}={folder}: {above} is a file; name another directory")
    probe = temporary(above / folder.name)
    with contextlib.suppress(OSError):
        remove_temporary(above)
    with contextlib.suppress(OSError):  # of a full disk a run speaks when it has begun
        make_folder(probe, of=folder, key=key)
        probe.rmdir()


def check_file(file: Path, *, key: str) -> None:
    """Refuse a file that cannot be written, before the work whose results it will hold.

    Args:
        file: that will be written, or replaced.
        key: by which it was named.

    Raises:
        UserError: it is a folder or a link, or its folder takes no file.
    """
    if file.is_dir() or file.is_symlink():
        kind = "link" if file.is_symlink() else "folder"
        raise UserError(f"{key}={file} is a {kind}; name a file")
    check_place(file.parent, key=key)
    try:
        if file.parent.exists():
            temporary(file).touch()
    except OSError as error:
        raise UserError(f"{key}={file} cannot be written ({error.strerror})") from error
    finally:
        temporary(file).unlink(missing_ok=True)


def age_of(file: Path) -> float:
    """Seconds since a file was written, by the clock of its file system; infinite without the file.

    The clocks of two hosts may differ by hours, so a file written now tells the time there.
    """
    probe = temporary(file.with_name("now"))
    try:
        written = file.stat().st_mtime
    except OSError:
        return float("inf")
    try:
        probe.write_bytes(b"")
        return probe.stat().st_mtime - written
    except OSError:  # a folder that may only be read
        return time.time() - written
    finally:
        with contextlib.suppress(OSError):
            probe.unlink(missing_ok=True)


def check_links(root: Path, *folders: str) -> None:
    """Refuse links that lead out of a directory, which may itself be a link, or of folders in it.

    A link in a folder that leads to nothing passes: files there are replaced, never written into.

    Raises:
        UserError: naming the link.
    """
    inside = root.resolve()
    for folder in ("", *folders):
        place = root / folder
        for entry in sorted(place.iterdir()) if place.is_dir() else ():
            outside = entry.is_symlink() and not entry.resolve().is_relative_to(inside)
            if outside and (not folder or entry.exists()):
                raise UserError(
                    f"{entry} is a link out of its directory; put the file itself there, or link"
                    " the directory as a whole"
                )


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes that lock the folder from writing in it."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)
