"""What a tokenizer is, and how a run finds its own again (SPEC D4).

A choice of `tokenizer=` is a frozen dataclass of settings that builds a `Tokenizer`; a tokenizer
saves itself into a folder, from which alone `load` brings it back.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol, Self

import numpy as np
import numpy.typing as npt

from chimera.data.source import hub
from chimera.errors import UserError

Ids = npt.NDArray[np.int64]
#: Describes the other files in the folder of a saved tokenizer.
DESCRIPTION = "tokenizer.json"
#: Part of the cache's key; raised whenever `save` writes something that older code cannot read.
VERSION = 2


@dataclass(frozen=True)
class SpecialIds:
    """Ids of the tokens that stand for no text; `mask` is None where there is none."""

    pad: int
    unk: int
    cls: int
    sep: int
    mask: int | None


@dataclass(frozen=True)
class Template:
    """Ids around the texts of an example: start a end, or start a middle b end."""

    start: tuple[int, ...]
    middle: tuple[int, ...]
    end: tuple[int, ...]


class Tokenizer(ABC):
    """Texts to ids and back.

    Text never yields a special token, not even one that spells its name.

    Args:
        special: ids of the special tokens; several may share one.
        vocab_size: number of ids.
        sha256: of what it was made from (model or vocabulary, and options); goes into the record.

    `template` is BERT's, [CLS] a [SEP] b [SEP], unless the tokenizer knows one of its own.
    """

    def __init__(self, special: SpecialIds, vocab_size: int, sha256: str) -> None:
        self.special, self.vocab_size, self.sha256 = special, vocab_size, sha256
        self.pad_id, self.unk_id = special.pad, special.unk
        self.cls_id, self.sep_id = special.cls, special.sep
        self.mask_id = special.mask
        self.special_ids = tuple(sorted({i for i in asdict(special).values() if i is not None}))
        self.template = Template((special.cls,), (special.sep,), (special.sep,))

    @abstractmethod
    def encode(self, texts: Sequence[str]) -> list[Ids]:
        """Ids of each text, without special tokens around it."""

    @abstractmethod
    def decode(self, ids: Iterable[int]) -> str:
        """The text of a sequence of ids; special tokens are left out."""

    @abstractmethod
    def _write(self, folder: Path) -> None: ...

    @classmethod
    @abstractmethod
    def _read(cls, folder: Path, special: SpecialIds, sha256: str) -> Self: ...

    def save(self, folder: Path) -> None:
        """Write what `load` needs."""
        folder.mkdir(parents=True, exist_ok=True)
        self._write(folder)
        described = {
            "kind": kind_of(type(self)),
            "vocab_size": self.vocab_size,
            "sha256": self.sha256,
            "special_ids": asdict(self.special),
            "template": asdict(self.template),
        }
        (folder / DESCRIPTION).write_text(json.dumps(described, indent=1) + "\n")


def load(folder: Path) -> Tokenizer:
    """The tokenizer that was saved into a folder.

    Raises:
        UserError: there is none.
    """
    try:
        described = json.loads((folder / DESCRIPTION).read_text())
        tokenizer_class = class_of(described["kind"])
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{folder} holds no saved tokenizer ({DESCRIPTION})") from error
    if tokenizer_class is None:
        raise UserError(f"{folder / DESCRIPTION}: {described['kind']} is no tokenizer of chimera")
    tokenizer = tokenizer_class._read(
        folder, SpecialIds(**described["special_ids"]), described["sha256"]
    )
    if "template" in described:
        tokenizer.template = Template(**{k: tuple(v) for k, v in described["template"].items()})
    return tokenizer


def kind_of(tokenizer: type[Tokenizer]) -> str:
    """What a saved tokenizer is called: its file in this folder and its class."""
    return f"{tokenizer.__module__.rpartition('.')[2]}.{tokenizer.__qualname__}"


def class_of(kind: object) -> type[Tokenizer] | None:
    """The class that `kind_of` names; None if it names no tokenizer of this folder.

    Version 1 wrote the module's path and the class; the file was called the same.
    """
    if isinstance(kind, list):
        kind = ".".join([str(kind[0]).rpartition(".")[2], *map(str, kind[1:])])
    module, _, name = str(kind).partition(".")
    folder = __name__.rpartition(".")[0]
    if not (module.isidentifier() and find_spec(f"{folder}.{module}")):
        return None
    value = getattr(import_module(f"{folder}.{module}"), name, None)
    is_one = isinstance(value, type) and issubclass(value, Tokenizer)
    return value if is_one else None


class TokenizerSettings(Protocol):
    """A choice of `tokenizer=`; its fields are the keys of `conf/tokenizer/<name>.yaml`."""

    def check(self) -> None:
        """Find out whether what it is made from is there.

        Raises:
            UserError: what is missing and what to do.
        """

    def fingerprint(self, corpus: str) -> str:
        """Hash of all that decides the tokenizer, given the corpus' fingerprint."""

    @property
    def learns(self) -> bool:
        """Whether it is made from the training text, rather than from files."""

    def build(self, documents: Sequence[str]) -> Tokenizer:
        """Make the tokenizer; `documents` of the training split are needed only if it learns."""


def locate(option: str, path: str, *names: str) -> list[Path]:
    """Files of a vocabulary: in a folder, a single file, or a model repository of the hub.

    Raises:
        UserError: they are nowhere to be found.
    """
    place = Path(path).expanduser()
    if place.is_file() and len(names) == 1:
        return [place]
    if place.is_dir():
        missing = [name for name in names if not (place / name).is_file()]
        if missing:
            raise UserError(f"{option}={path} holds no {' and no '.join(missing)}")
        return [place / name for name in names]
    if not place.exists() and hub.is_id(path):
        return [hub.find_file(path, name, option) for name in names]
    raise UserError(
        f"{option}={path} is not there; it takes a folder with {' and '.join(names)},"
        " or owner/name of a model on the hub"
    )
