"""The tokenizer that a model was trained with (SPEC D4): of a Chimera run or a Hugging Face model.

The special tokens around and between two texts (`Template`) are read from a pair that the tokenizer
encodes. If a decoder's tokenizer puts no separator between them, its end token is used.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from chimera.data.source import hub
from chimera.data.source.cache import file_fingerprint, fingerprint_of
from chimera.data.tokenizer.base import (
    DESCRIPTION,
    SpecialIds,
    Template,
    Tokenizer,
    TokenizerSettings,
    load,
)
from chimera.data.tokenizer.fast import FastTokenizer
from chimera.errors import UserError
from chimera.paths import named
from chimera.safe_io import read_json

#: Files of a Hugging Face tokenizer, in the order of preference.
_FILES = ("tokenizer.json", "spm.model", "sentencepiece.bpe.model", "vocab.txt", "vocab.json")


@dataclass(frozen=True, kw_only=True)
class Own(TokenizerSettings):
    """The tokenizer that a model was trained with.

    Args:
        path: a folder or `owner/name` on the hub; null: that of `init_from=` or `model.name=`.
    """

    path: str | None = None

    def check(self) -> None:
        """See `TokenizerSettings.check`."""
        if self.path is None:
            raise UserError(
                "tokenizer=own needs a model; give init_from=<a run>, model=hf model.name=<a"
                " model>, or tokenizer.path=<a folder>"
            )
        if self._folder() is None:
            hub.find_file(self.path, "tokenizer_config.json", "tokenizer.path")
        if not self._ours():
            require_transformers("tokenizer=own")

    def fingerprint(self, corpus: str) -> str:
        """Hash of the files; for the hub, of the name."""
        folder = self._folder()
        if folder is None:
            return fingerprint_of("own", 1, self.path)
        paths = [folder / name for name in (*_FILES, "tokenizer_config.json")]
        files = [(f.name, file_fingerprint(f)) for f in paths if f.is_file()]
        models = [file_fingerprint(f) for f in sorted(folder.glob("*.model"))]
        return fingerprint_of("own", 1, files, models)

    def build(self, documents: Iterable[str]) -> Tokenizer:
        """See `TokenizerSettings.build`."""
        folder = self._folder()
        if folder is not None and self._ours():
            return load(folder)
        return from_transformers(str(folder or self.path))

    def chat(self) -> Any:
        """See `TokenizerSettings.chat`."""
        if self._ours():
            return None
        pretrained = _pretrained(str(self._folder() or self.path))
        return pretrained if getattr(pretrained, "chat_template", None) else None

    def _folder(self) -> Path | None:
        """Local folder of the tokenizer; None for one on the hub.

        Raises:
            UserError: the path is neither a folder with a tokenizer nor `owner/name`.
        """
        folder = named(str(self.path))
        if folder.is_dir():
            if not any((folder / name).is_file() for name in _FILES):
                raise UserError(f"tokenizer.path={self.path} holds none of {', '.join(_FILES)}")
            return folder
        if hub.is_id(str(self.path)):
            return None
        raise UserError(f"tokenizer.path={self.path} does not exist; name a folder or owner/name")

    def _ours(self) -> bool:
        """Whether Chimera saved the tokenizer."""
        folder = self._folder()
        file = folder / DESCRIPTION if folder else None
        return file is not None and "kind" in read_json(file)


def require_transformers(setting: str) -> None:
    """Refuse a setting that needs the library transformers if it is not installed.

    Raises:
        UserError: with the command that installs the library.
    """
    if find_spec("transformers") is None:
        raise UserError(f"{setting} needs the library transformers: pip install -e '.[hf]'")


def from_transformers(name: str) -> Tokenizer:
    """Load the fast tokenizer of a Hugging Face model.

    Args:
        name: a folder or `owner/name`.

    Raises:
        UserError: the model has none.
    """
    from tokenizers import Tokenizer as Fast

    pretrained = _pretrained(name)
    backend = getattr(pretrained, "backend_tokenizer", None)
    if backend is None:
        raise UserError(f"{name} has no fast tokenizer, which tokenizer=own needs; choose another")
    text = backend.to_str()
    fast = Fast.from_str(text)
    fast.no_padding()
    fast.no_truncation()
    special = _special(pretrained)
    tokenizer = FastTokenizer(fast, special, hashlib.sha256(text.encode()).hexdigest())
    # At least the length that transformers states, so that each id has a row in the embeddings.
    tokenizer.vocab_size = max(tokenizer.vocab_size, len(pretrained))
    fast.encode_special_tokens = False
    tokenizer.template = _template(fast, special)
    fast.encode_special_tokens = True
    return tokenizer


def _pretrained(name: str) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except (OSError, ValueError, ImportError) as error:
        reason = str(error).strip().split("\n")[0]
        raise UserError(f"the tokenizer of {name} cannot be loaded ({reason})") from error


def _special(pretrained: Any) -> SpecialIds:
    """Ids of the special tokens; the end token replaces those that a decoder lacks."""

    def first(*names: str) -> int | None:
        ids = (getattr(pretrained, f"{name}_token_id", None) for name in names)
        return next((i for i in ids if i is not None), None)

    found = {"pad": first("pad"), "unk": first("unk"), "cls": first("cls", "bos")}
    end = first("sep", "eos", "bos", "cls", "unk", "pad") or 0
    ids = {role: end if i is None else i for role, i in found.items()}
    return SpecialIds(**ids, sep=end, mask=first("mask"))


def _template(fast: Any, special: SpecialIds) -> Template:
    """Special ids before, between and after two texts, read from an encoded pair."""
    encoded = fast.encode("a", "b", add_special_tokens=True)
    sides: list[int | None] = list(encoded.sequence_ids)
    if 0 not in sides or 1 not in sides:
        return Template((special.cls,), (special.sep,), (special.sep,))
    ids = list(encoded.ids)
    last_of_first = len(sides) - 1 - sides[::-1].index(0)
    middle = ids[last_of_first + 1 : sides.index(1)]
    last = len(sides) - 1 - sides[::-1].index(1)
    return Template(
        tuple(ids[: sides.index(0)]), tuple(middle) or (special.sep,), tuple(ids[last + 1 :])
    )
