"""Base classes of tokenizers; save and load a tokenizer (SPEC D4).

A choice of `tokenizer=` is a frozen dataclass of settings that builds a `Tokenizer`. A tokenizer
saves itself to a folder; `load` needs only that folder.
"""

from __future__ import annotations

import json
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.util import find_spec
from inspect import isabstract
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from chimera.data.source import hub
from chimera.data.source.files import parsing
from chimera.errors import UserError
from chimera.safe_io import expanded, temporary

Ids = npt.NDArray[np.int64]
#: Describes the other files in the folder of a saved tokenizer.
DESCRIPTION = "tokenizer.json"
#: Part of the cache's key; raise it when older code cannot read the files that `save` writes.
VERSION = 2


@dataclass(frozen=True)
class SpecialIds:
    """Ids of the special tokens; `mask` is None if there is no mask token."""

    pad: int
    unk: int
    cls: int
    sep: int
    mask: int | None


@dataclass(frozen=True)
class Template:
    """Special ids around the texts a, b of an example: start a end, or start a middle b end."""

    start: tuple[int, ...]
    middle: tuple[int, ...]
    end: tuple[int, ...]


@dataclass(frozen=True)
class _Description:
    """What `load` reads of a saved tokenizer's description."""

    kind: str
    sha256: str
    special_ids: SpecialIds
    template: Template


class Tokenizer(ABC):
    """Encode texts as token ids and decode ids.

    A text never gives a special token, even if it contains that token's name.

    Args:
        special: ids of the special tokens; several may share an id.
        vocab_size: number of ids.
        sha256: hash of model or vocabulary and options, for the record of the run.

    `template` is BERT's, [CLS] a [SEP] b [SEP], unless a subclass sets another.
    """

    def __init__(self, special: SpecialIds, vocab_size: int, sha256: str) -> None:
        self.special = special
        self.vocab_size = vocab_size
        self.sha256 = sha256
        self.pad_id = special.pad
        self.unk_id = special.unk
        self.cls_id = special.cls
        self.sep_id = special.sep
        self.mask_id = special.mask
        self.special_ids = tuple(sorted({i for i in asdict(special).values() if i is not None}))
        self.template = Template((special.cls,), (special.sep,), (special.sep,))

    @abstractmethod
    def encode(self, texts: Sequence[str]) -> list[Ids]:
        """Ids [n] int64 of each text, without special tokens."""

    @abstractmethod
    def decode(self, ids: Iterable[int]) -> str:
        """Text of a sequence of ids, without special tokens."""

    def opening(self, *, packed: bool) -> tuple[int, ...]:
        """Ids before a decoder's text, as it was trained; there may be none.

        Packed documents follow the end of one another. Instructions begin as the template says, and
        so does any text where the template ends none: it is a pretrained decoder's.

        Args:
            packed: whether the decoder was trained on packed documents.
        """
        if packed and (self.template.end or not self.template.start):
            return (self.sep_id,)
        return self.template.start

    @abstractmethod
    def _write(self, folder: Path) -> None: ...

    @classmethod
    @abstractmethod
    def _read(cls, folder: Path, special: SpecialIds, sha256: str) -> Self: ...

    def save(self, folder: Path) -> None:
        """Write all files that `load` needs to a folder; each is whole, also after a crash."""
        made = temporary(folder / "tokenizer")
        made.mkdir(parents=True)
        try:
            self._write(made)
            self._describe(made)
            for file in made.iterdir():
                os.replace(file, folder / file.name)
        finally:
            shutil.rmtree(made, ignore_errors=True)

    def _describe(self, folder: Path) -> None:
        described = {
            "kind": kind_of(type(self)),
            "vocab_size": self.vocab_size,
            "sha256": self.sha256,
            "special_ids": asdict(self.special),
            "template": asdict(self.template),
        }
        (folder / DESCRIPTION).write_text(json.dumps(described, indent=1) + "\n")


def load(folder: Path) -> Tokenizer:
    """Load the tokenizer that was saved to a folder.

    Raises:
        UserError: the folder holds no tokenizer of Chimera.
    """
    from pydantic import TypeAdapter

    file = folder / DESCRIPTION
    try:
        described = TypeAdapter(_Description).validate_json(file.read_bytes(), strict=True)
    except (OSError, ValueError) as error:
        raise UserError(f"{folder} holds no saved tokenizer ({DESCRIPTION})") from error
    tokenizer_class = class_of(described.kind)
    if tokenizer_class is None:
        raise UserError(f"{file}: {described.kind[:80]!r} is no tokenizer of chimera")
    with parsing(folder, "a whole tokenizer"):
        try:
            tokenizer = tokenizer_class._read(folder, described.special_ids, described.sha256)
        except OSError as error:
            raise UserError(f"{folder} lacks a file of its tokenizer: {error}") from error
    tokenizer.template = around = described.template
    ids = (*tokenizer.special_ids, *around.start, *around.middle, *around.end)
    if not all(0 <= each < tokenizer.vocab_size for each in ids):
        raise UserError(f"{file} names an id that its tokenizer has not; restore the file")
    return tokenizer


def kind_of(tokenizer: type[Tokenizer]) -> str:
    """Name of a tokenizer class in saved files: its module in this folder, and the class."""
    return f"{tokenizer.__module__.rpartition('.')[2]}.{tokenizer.__qualname__}"


def class_of(kind: str) -> type[Tokenizer] | None:
    """Find the class that `kind_of` names; None if this folder has no such tokenizer."""
    module, _, name = kind.partition(".")
    folder = __name__.rpartition(".")[0]
    if not (module.isidentifier() and find_spec(f"{folder}.{module}")):
        return None
    value = getattr(import_module(f"{folder}.{module}"), name, None)
    if not isinstance(value, type) or not issubclass(value, Tokenizer):
        return None
    return None if isabstract(value) else value


class TokenizerSettings(ABC):
    """A choice of `tokenizer=`; its fields are the keys of `conf/tokenizer/<name>.yaml`."""

    def chat(self) -> Any:
        """transformers' tokenizer of the model if it has a chat template; else None."""
        return None

    @property
    def learns(self) -> bool:
        """Whether the tokenizer is learnt from the training text instead of read from files."""
        return False

    def check(self) -> None:  # noqa: B027 - some choices need no files
        """Check that the files of the tokenizer are available.

        Raises:
            UserError: what is missing and what to do.
        """

    @abstractmethod
    def fingerprint(self, corpus: str) -> str:
        """Hash of all inputs of the tokenizer.

        Args:
            corpus: fingerprint of the corpus, for a tokenizer that learns from it.
        """

    @abstractmethod
    def build(self, documents: Iterable[str]) -> Tokenizer:
        """Build the tokenizer.

        Args:
            documents: of the training split; used only if the tokenizer learns. They can be read
                several times.
        """


def letters_of(documents: Iterable[str]) -> int:
    """Characters of all lines of documents, which are read for it unless they know `letters`."""
    known: int | None = getattr(documents, "letters", None)
    if known is not None:
        return known
    return sum(len(document) - document.count("\n") for document in documents)


def locate(option: str, path: str, *names: str) -> list[Path]:
    """Find the files of a vocabulary: in a folder, a single file, or a repository of the hub.

    Args:
        option: key whose value is `path`, for messages.
        path: a folder, a file, or `owner/name` on the hub.
        names: of the files.

    Raises:
        UserError: a file is missing.
    """
    local = expanded(path)
    if local.is_file() and len(names) == 1:
        return [local]
    if local.is_dir():
        missing = [name for name in names if not (local / name).is_file()]
        if missing:
            raise UserError(f"{option}={path} holds no {' and no '.join(missing)}")
        return [local / name for name in names]
    if not local.exists() and hub.is_id(path):
        return [hub.find_file(path, name, option) for name in names]
    raise UserError(
        f"{option}={path} does not exist; it takes a folder with {' and '.join(names)},"
        " or owner/name of a model on the hub"
    )
