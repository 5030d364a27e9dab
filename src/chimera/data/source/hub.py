"""Load data sets and vocabularies from the Hugging Face hub, or fail with one line.

Offline, the hub's libraries retry for half a minute and raise a traceback. So before a request this
module checks whether a local copy exists or the hub can be reached.

A data set that is too large to fetch as a whole is read as a stream, up to a bound (`streamed`).
Its text is needed up to three times (to divide it, for the tokenizer, to encode it), so it is kept
in the cache, in compressed JSON lines. An interrupted stream goes on after its last whole file.
"""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from chimera.data.source import cache
from chimera.data.source.cache import fingerprint_of, read_note
from chimera.data.source.files import SPLIT_WORDS, Repeatable, text_in
from chimera.data.source.splits import Split
from chimera.errors import UnavailableError, UserError, one_line
from chimera.safe_io import expanded, write_atomic

_KIND = "hub"
_FILE_BYTES = 1 << 26  # of text in each file of a stream
_STATE = "state.json"


def is_id(path: str) -> bool:
    """Whether a text has the form of a repository's name, `owner/name`."""
    return re.fullmatch(r"[\w.-]+/[\w.-]+", path) is not None and not path.startswith(".")


def check_dataset(name: str, config: str | None, instead: str) -> None:
    """Refuse a data set without a local copy if the hub cannot be reached.

    Args:
        name: of the data set, `owner/name`.
        config: its configuration; None if it has only one.
        instead: alternative to name in the error message.

    Raises:
        UserError: the data set is not available.
    """
    from huggingface_hub import constants

    # The path that datasets.config computes; importing that module takes half a second.
    prepared = os.environ.get("HF_DATASETS_CACHE", f"{constants.HF_HOME}/datasets")
    copies = (
        Path(constants.HF_HUB_CACHE) / f"datasets--{name.replace('/', '--')}",
        expanded(prepared) / name.replace("/", "___"),
    )
    if not any(folder.is_dir() for folder in copies) and not reachable():
        raise _unavailable(name, config, instead)


def load_rows(
    name: str, config: str | None, field: str, instead: str
) -> dict[Split, Iterable[str]]:
    """Load one text column of a data set, by split.

    Args:
        name, config, instead: as of `check_dataset`.
        field: name of the column; where a row has no text in it, reading the rows refuses it.

    Raises:
        UserError: the data set is not available.
    """
    return {
        SPLIT_WORDS[split]: Repeatable(_column, data, field, f"{name} ({split})")
        for split, data in load_splits(name, config, instead).items()
        if split in SPLIT_WORDS
    }


def _column(data: Iterable[object], field: str, where: str) -> Iterator[str]:
    for number, row in enumerate(data):
        yield text_in(row, field, f"{where}: row {number}", "data.field=")


def load_splits(name: str, config: str | None, instead: str) -> dict[str, Any]:
    """Load a data set with all columns, by the hub's names of its splits.

    Args:
        name, config, instead: as of `check_dataset`.

    Raises:
        UserError: the data set is not available, or the configuration is unknown or missing.
    """
    from datasets import load_dataset

    with errors(name, config, instead):
        return dict(load_dataset(name, config))


@contextmanager
def errors(name: str, config: str | None, instead: str) -> Iterator[None]:
    """Turn the errors of `datasets` into one line.

    Args:
        name, config, instead: as of `check_dataset`.

    Raises:
        UserError: the data set is not available, or the configuration is unknown or missing.
    """
    try:
        yield
    except UserError:  # which is a ValueError
        raise
    except OSError as error:  # a ConnectionError, or the error of `datasets` for an unknown name
        from huggingface_hub.errors import GatedRepoError

        if isinstance(error.__cause__ or error, GatedRepoError):
            raise UserError(
                f"{name} is given only to users who accepted its terms; accept them on"
                f" huggingface.co/datasets/{name} and set HF_TOKEN"
            ) from error
        raise _unavailable(name, config, instead) from error
    except ValueError as error:  # an unknown or missing configuration: the message lists them
        raise UserError(f"{name}: {one_line(error)}") from error


def find_file(name: str, file: str, option: str) -> Path:
    """Find the local copy of one file of a model repository; download it if there is none.

    Args:
        name: of the repository, `owner/name`.
        file: name of the file.
        option: key whose value is `name`, for the message.

    Raises:
        UserError: the file is not available.
    """
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    cached = try_to_load_from_cache(name, file)
    if isinstance(cached, str):
        return Path(cached)
    missing = UserError(
        f"{option}={name}: its {file} is not on this machine and cannot be fetched; connect once,"
        f" or give {option}=<a folder that holds {file}>"
    )
    if not reachable():
        raise missing
    try:
        return Path(hf_hub_download(name, file))
    except OSError as error:
        raise missing from error


def reachable() -> bool:
    """Whether the hub accepts a connection within a second; with a proxy, assumed."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    if getproxies():
        return True
    address = urlsplit(constants.ENDPOINT)
    port = address.port or (80 if address.scheme == "http" else 443)
    try:
        socket.create_connection((address.hostname or "", port), 1.0).close()
    except OSError:
        return False
    return True


def _unavailable(name: str, config: str | None, instead: str) -> UnavailableError:
    arguments = f"'{name}'" if config is None else f"'{name}', '{config}'"
    return UnavailableError(
        f"the data set {name} is not on this machine and cannot be fetched; check the name, fetch"
        f" it once while connected (datasets.load_dataset({arguments})), or give {instead}"
    )


def streamed(
    root: Path, name: str, config: str | None, field: str, max_bytes: int, instead: str
) -> list[Path]:
    """Files of JSON lines `{"text": …}` with the first `max_bytes` of a data set's train split.

    Args:
        root: directory of the cache.
        name, config, instead: as of `check_dataset`.
        field: name of the column.
        max_bytes: of text; the last row may exceed it.

    Raises:
        UserError: the data set is not available or has no such column.
    """

    def build(folder: Path) -> dict[str, Any]:
        with errors(name, config, instead):
            return _write_stream(folder, name, config, field, max_bytes)

    key = fingerprint_of(_KIND, 1, name, config, field, max_bytes)
    folder, _ = cache.entry(root, _KIND, key, build, resume=True)
    return sorted(folder.glob("*.jsonl.zst"))


def is_streamed(root: Path, name: str, config: str | None, field: str, max_bytes: int) -> bool:
    """Whether `streamed` has its files in the cache."""
    return cache.has(root, _KIND, fingerprint_of(_KIND, 1, name, config, field, max_bytes))


@dataclass
class _Done:
    """Numbers of the whole files, rows and bytes, and the position of `datasets` behind them."""

    files: int = 0
    rows: int = 0
    bytes: int = 0
    position: Any = None


def _write_stream(
    folder: Path, name: str, config: str | None, field: str, max_bytes: int
) -> dict[str, Any]:
    """Write up to `max_bytes` of text, file by file; return numbers of files, rows and bytes."""
    import pyarrow
    from datasets import load_dataset

    data: Any = load_dataset(name, config, split="train", streaming=True)
    if data.column_names and field in data.column_names:
        data = data.select_columns([field])
    state = folder / _STATE
    done: _Done = read_note(state, _Done) or _Done()
    if done.files:
        data.load_state_dict(done.position)
    texts = (text_in(row, field, name, "data.field=") for row in data)
    while done.bytes < max_bytes:
        file = folder / f"{done.files:05d}.jsonl.zst"
        temporary = file.with_suffix(".writing")
        most = min(_FILE_BYTES, max_bytes - done.bytes)
        size = count = 0
        with pyarrow.CompressedOutputStream(str(temporary), "zstd") as stream:
            while size < most and (text := next(texts, None)) is not None:
                stream.write(json.dumps({"text": text}, ensure_ascii=False).encode() + b"\n")
                size += len(text.encode())
                count += 1
        if not count:
            temporary.unlink()
            break
        os.replace(temporary, file)
        done.files += 1
        done.rows += count
        done.bytes += size
        done.position = data.state_dict()
        write_atomic(state, json.dumps(asdict(done)))
    state.unlink(missing_ok=True)
    return {"files": done.files, "rows": done.rows, "bytes": done.bytes}
