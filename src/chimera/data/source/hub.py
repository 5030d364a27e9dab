"""Data sets and vocabularies from the Hugging Face hub, and one line where they cannot be had.

The libraries' own way of being offline is half a minute of retries and a traceback; so before
anything is asked of the hub, see whether it was fetched before or can be reached at all.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from chimera.data.source.splits import Split
from chimera.errors import UserError

#: What the hub's data sets call their splits.
_SPLITS: dict[str, Split] = {
    "train": "train",
    "validation": "valid",
    "valid": "valid",
    "dev": "valid",
    "test": "test",
}


def is_id(path: str) -> bool:
    """Whether this could name a repository: `owner/name`."""
    return re.fullmatch(r"[\w.-]+/[\w.-]+", path) is not None and not path.startswith(".")


def check_dataset(name: str, config: str | None, instead: str) -> None:
    """Refuse a data set that was never fetched when the hub cannot be reached.

    Raises:
        UserError: saying what to fetch, or to give `instead`.
    """
    from huggingface_hub import constants

    # As in datasets.config, which takes half a second to import.
    prepared = os.environ.get("HF_DATASETS_CACHE", f"{constants.HF_HOME}/datasets")
    fetched = (
        Path(constants.HF_HUB_CACHE) / f"datasets--{name.replace('/', '--')}",
        Path(prepared).expanduser() / name.replace("/", "___"),
    )
    if not any(folder.is_dir() for folder in fetched) and not reachable():
        raise _not_there(name, config, instead)


def load_rows(
    name: str, config: str | None, field: str, instead: str
) -> dict[Split, Iterable[str]]:
    """One text column of a data set, by split.

    Raises:
        UserError: it cannot be had, or has no such column.
    """
    rows: dict[Split, Iterable[str]] = {}
    for split, data in load_splits(name, config, instead).items():
        if field not in data.column_names:
            raise UserError(
                f"{name} has no column {field}; data.field takes one of"
                f" {', '.join(data.column_names)}"
            )
        if split in _SPLITS:
            rows[_SPLITS[split]] = _column(data, field)
    return rows


def load_splits(name: str, config: str | None, instead: str) -> dict[str, Any]:
    """A data set with all its columns, by the hub's names of its splits.

    Raises:
        UserError: it cannot be had.
    """
    from datasets import load_dataset

    try:
        return dict(load_dataset(name, config))
    except OSError as error:  # ConnectionError, and what datasets raises for an unknown name
        raise _not_there(name, config, instead) from error
    except ValueError as error:  # an unknown or missing configuration: the message lists them
        raise UserError(f"{name}: {' '.join(str(error).split())}") from error


def find_file(name: str, file: str, option: str) -> Path:
    """The local copy of one file of a model repository, fetched if need be.

    Raises:
        UserError: it cannot be had.
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


def reachable(timeout: float = 1.0) -> bool:
    """Whether the hub answers; assumed behind a proxy."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    if getproxies():
        return True
    address = urlsplit(constants.ENDPOINT)
    port = address.port or (80 if address.scheme == "http" else 443)
    try:
        socket.create_connection((address.hostname or "", port), timeout).close()
    except OSError:
        return False
    return True


def _column(data: Iterable[dict[str, str]], field: str) -> Iterator[str]:
    return (row[field] for row in data)


def _not_there(name: str, config: str | None, instead: str) -> UserError:
    arguments = f"'{name}'" if config is None else f"'{name}', '{config}'"
    return UserError(
        f"the data set {name} is not on this machine and the hub does not give it; check the name,"
        f" fetch it once while connected (datasets.load_dataset({arguments})), or give {instead}"
    )
