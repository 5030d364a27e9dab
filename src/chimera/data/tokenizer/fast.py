"""Tokenizers of the Hugging Face library `tokenizers`; BERT's WordPiece and GPT-2's BPE (SPEC D4).

WordPiece (arXiv 1810.04805) takes the greedy longest match in words. Byte-level BPE (SAIDL 2.1)
merges bytes, so no text is unknown. GPT-2 has one special token, <|endoftext|>. It separates
documents and is used as class and unknown token. A masked language model needs two more, [PAD] and
[MASK]. They are appended to the vocabulary (50,257 become 50,259) unless `mlm_tokens` is off; then
<|endoftext|> also pads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np

from chimera.data.source.cache import file_fingerprint, fingerprint_of
from chimera.data.source.files import parsing
from chimera.data.tokenizer.base import Ids, SpecialIds, Tokenizer, TokenizerSettings, locate
from chimera.errors import UserError

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Fast

#: The library's `tokenizer.json`; that name is taken by `DESCRIPTION`.
_FILE = "huggingface.json"


class FastTokenizer(Tokenizer):
    """Wraps a `tokenizers.Tokenizer`."""

    def __init__(self, fast: Fast, special: SpecialIds, sha256: str) -> None:
        super().__init__(special, max(fast.get_vocab().values()) + 1, sha256)
        fast.encode_special_tokens = True  # encode their names as ordinary text
        self.fast = fast

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        encoded = self.fast.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(encoding.ids, dtype=np.int64) for encoding in encoded]

    def decode(self, ids: Iterable[int]) -> str:
        return str(self.fast.decode([int(i) for i in ids]))

    def _write(self, folder: Path) -> None:
        self.fast.save(str(folder / _FILE))

    @classmethod
    def _read(cls, folder: Path, special: SpecialIds, sha256: str) -> Self:
        from tokenizers import Tokenizer as Fast

        try:
            return cls(Fast.from_buffer((folder / _FILE).read_bytes()), special, sha256)
        except ValueError as error:  # of the library
            why = " ".join(str(error).split())[:200]
            raise UserError(f"{folder / _FILE} is no tokenizer: {why}") from error


_SPECIAL = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}


@dataclass(frozen=True, kw_only=True)
class WordPiece(TokenizerSettings):
    """BERT's tokenizer.

    Args:
        path: a `vocab.txt`, a folder that holds one, or `owner/name` of a model on the hub.
        lowercase: convert text to lower case and remove accents, as uncased models expect.
    """

    path: str = "google-bert/bert-base-uncased"
    lowercase: bool = True

    def check(self) -> None:
        """See `TokenizerSettings.check`."""
        locate("tokenizer.path", self.path, "vocab.txt")

    def fingerprint(self, corpus: str) -> str:
        """Hash of the vocabulary and the option."""
        (file,) = locate("tokenizer.path", self.path, "vocab.txt")
        return fingerprint_of("wordpiece", 1, file_fingerprint(file), self.lowercase)

    def build(self, documents: Iterable[str]) -> Tokenizer:
        """See `TokenizerSettings.build`."""
        from tokenizers import Tokenizer as Fast
        from tokenizers import decoders, models, normalizers, pre_tokenizers

        (file,) = locate("tokenizer.path", self.path, "vocab.txt")
        with parsing(file, "a vocabulary"):
            vocabulary = models.WordPiece.read_file(str(file))
        missing = [token for token in _SPECIAL.values() if token not in vocabulary]
        if missing:
            raise UserError(f"tokenizer.path={self.path}: {file} lacks {', '.join(missing)}")
        _check_ids(self.path, file, vocabulary)  # a token twice leaves a gap
        fast = Fast(models.WordPiece(vocabulary, unk_token=_SPECIAL["unk"]))
        fast.normalizer = normalizers.BertNormalizer(lowercase=self.lowercase)
        fast.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        fast.decoder = decoders.WordPiece()
        fast.add_special_tokens(list(_SPECIAL.values()))
        special = SpecialIds(**{role: vocabulary[token] for role, token in _SPECIAL.items()})
        return FastTokenizer(fast, special, self.fingerprint(""))


def _check_ids(path: str, file: Path, ids: dict[str, int]) -> None:
    """Reject a vocabulary whose ids have gaps: the model would have fewer rows than the last id."""
    if {*ids.values()} != {*range(len(ids))}:
        raise UserError(f"tokenizer.path={path}: the ids of {file} are not 0, 1, 2, …")


_END = "<|endoftext|>"


@dataclass(frozen=True, kw_only=True)
class ByteBPE(TokenizerSettings):
    """GPT-2's tokenizer.

    Args:
        path: a folder with `vocab.json` and `merges.txt`, or `owner/name` of a model on the hub.
        mlm_tokens: append [PAD] and [MASK]; turn it off for a causal model with GPT-2's exact
            vocabulary.
    """

    path: str = "openai-community/gpt2"
    mlm_tokens: bool = True

    def check(self) -> None:
        """See `TokenizerSettings.check`."""
        locate("tokenizer.path", self.path, "vocab.json", "merges.txt")

    def fingerprint(self, corpus: str) -> str:
        """Hash of the two files and the option."""
        files = locate("tokenizer.path", self.path, "vocab.json", "merges.txt")
        return fingerprint_of("byte_bpe", 1, list(map(file_fingerprint, files)), self.mlm_tokens)

    def build(self, documents: Iterable[str]) -> Tokenizer:
        """See `TokenizerSettings.build`."""
        from tokenizers import Tokenizer as Fast
        from tokenizers import decoders, models, pre_tokenizers

        files = locate("tokenizer.path", self.path, "vocab.json", "merges.txt")
        with parsing(" and ".join(map(str, files)), "a vocabulary and its merges"):
            fast = Fast(models.BPE.from_file(*map(str, files)))
        fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        fast.decoder = decoders.ByteLevel()
        _check_ids(self.path, files[0], fast.get_vocab())
        end = fast.token_to_id(_END)
        if end is None:
            raise UserError(f"tokenizer.path={self.path}: {files[0]} lacks {_END}")
        fast.add_special_tokens([_END, *(["[PAD]", "[MASK]"] if self.mlm_tokens else [])])
        pad = fast.token_to_id("[PAD]") if self.mlm_tokens else end
        mask = fast.token_to_id("[MASK]") if self.mlm_tokens else None
        special = SpecialIds(pad=pad or end, unk=end, cls=end, sep=end, mask=mask)
        return FastTokenizer(fast, special, self.fingerprint(""))
