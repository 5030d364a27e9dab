"""Load data sets and vocabularies from the Hugging Face hub, or fail with one line.

Offline, the hub's libraries retry for half a minute and raise a traceback. So before a request this
module checks whether a local copy exists or the hub can be reached.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from chimera.data.source.splits import Split
from chimera.errors import UserError

#: Names of splits on the hub to ours.
_SPLITS: dict[str, Split] = {
    "train": "train",
    "validation": "valid",
    "valid": "valid",
    "dev": "valid",
    "test": "test",
}


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
        Path(prepared).expanduser() / name.replace("/", "___"),
    )
    if not any(folder.is_dir() for folder in copies) and not reachable():
        raise _unavailable(name, config, instead)


def load_rows(
    name: str, config: str | None, field: str, instead: str
) -> dict[Split, Iterable[str]]:
    """Load one text column of a data set, by split.

    Args:
        name, config, instead: as of `check_dataset`.
        field: name of the column.

    Raises:
        UserError: the data set is not available or has no such column.
    """
    rows: dict[Split, Iterable[str]] = {}
    for split, data in load_splits(name, config, instead).items():
        if field not in data.column_names:
            raise UserError(
                f"{name} has no column {field}; data.field takes one of"
                f" {', '.join(data.column_names)}"
            )
        if split in _SPLITS:
            rows[_SPLITS[split]] = Column(data, field)
    return rows


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
    except OSError as error:  # a ConnectionError, or the error of `datasets` for an unknown name
        if "gated" in str(error):
            raise UserError(
                f"{name} is given only to users who accepted its terms; accept them on"
                f" huggingface.co/datasets/{name} and set HF_TOKEN"
            ) from error
        raise _unavailable(name, config, instead) from error
    except ValueError as error:  # an unknown or missing configuration: the message lists them
        raise UserError(f"{name}: {' '.join(str(error).split())}") from error


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


def reachable(timeout: float = 1.0) -> bool:
    """Whether the hub accepts a connection; with a proxy, assumed.

    Args:
        timeout: seconds to wait.
    """
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


@dataclass(frozen=True)
class Column:
    """Values of a text column; they can be read several times."""

    data: Iterable[dict[str, str]]
    field: str

    def __iter__(self) -> Iterator[str]:
        return (row[self.field] for row in self.data)


def _unavailable(name: str, config: str | None, instead: str) -> UserError:
    arguments = f"'{name}'" if config is None else f"'{name}', '{config}'"
    return UserError(
        f"the data set {name} is not on this machine and cannot be fetched; check the name, fetch"
        f" it once while connected (datasets.load_dataset({arguments})), or give {instead}"
    )
