"""SentencePiece unigram (SPEC D4; arXiv 1808.06226, 1804.10959), learnt from the training text.

    P(x) = max over segmentations s of x of Π_i p(s_i)

The learnt model depends on the trainer's thread count, so the count is a setting.
"""

from __future__ import annotations

import hashlib
import io
import logging
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal, Self

import numpy as np

from chimera.data.source.cache import file_fingerprint, fingerprint_of
from chimera.data.tokenizer.base import Ids, SpecialIds, Tokenizer, TokenizerSettings, letters_of
from chimera.errors import UserError
from chimera.safe_io import expanded
from chimera.types import Fraction, PositiveInt

log = logging.getLogger("chimera")

_FILE = "sentencepiece.model"
#: Names of the special pieces, those of models trained here first.
_SPECIAL = {
    "pad": ("[PAD]", "<pad>"),
    "unk": ("[UNK]", "<unk>"),
    "cls": ("[CLS]", "<s>"),
    "sep": ("[SEP]", "</s>"),
    "mask": ("[MASK]", "<mask>"),
}


@dataclass(frozen=True, kw_only=True, repr=False)
class SentencePiece(TokenizerSettings):
    """SentencePiece unigram model.

    Args:
        path: an existing .model; None learns one from the training text.
        vocab_size: number of pieces, special ones included (50,000 in TITAN); fewer if the text
            gives fewer.
        character_coverage: share of the text's characters that become pieces.
        byte_fallback: encode other characters as byte pieces (256 of them); if off, they are [UNK].
        train_bytes: size of the training sample, lines at equal distances.
        sample: even takes distances by which the sample has that size; null, as in recorded runs,
            takes whole ones, by which it can have half of it.
        num_threads: of the trainer; the result depends on it.
    """

    path: str | None = None
    vocab_size: PositiveInt = 4000
    character_coverage: Fraction = 0.9995
    byte_fallback: bool = True
    train_bytes: PositiveInt = 5_000_000
    sample: Literal["even"] | None = None
    num_threads: PositiveInt = 4

    def check(self) -> None:
        """See `TokenizerSettings.check`."""
        if self.path is not None and not expanded(self.path).is_file():
            raise UserError(
                f"tokenizer.path={self.path} does not exist; give a SentencePiece .model,"
                " or null to learn one from the corpus"
            )

    def __repr__(self) -> str:
        """As a dataclass prints it, without a sample that is not chosen: caches are found by it."""
        shown = (f for f in fields(self) if f.name != "sample" or self.sample is not None)
        values = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in shown)
        return f"{type(self).__name__}({values})"

    def fingerprint(self, corpus: str) -> str:
        """Hash of the model file; without a file, of the corpus and all settings."""
        if self.path is not None:
            return fingerprint_of("sentencepiece", file_fingerprint(expanded(self.path)))
        return fingerprint_of("sentencepiece", 1, corpus, self)

    @property
    def learns(self) -> bool:
        """See `TokenizerSettings.learns`."""
        return self.path is None

    def build(self, documents: Iterable[str]) -> Tokenizer:
        """See `TokenizerSettings.build`."""
        if self.path is not None:
            return SentencePieceTokenizer(expanded(self.path).read_bytes(), self.path)
        tokenizer = SentencePieceTokenizer(self.train(documents))
        if tokenizer.vocab_size < self.vocab_size:
            log.warning(
                "tokenizer: the text gives %d pieces, fewer than tokenizer.vocab_size=%d",
                tokenizer.vocab_size,
                self.vocab_size,
            )
        return tokenizer

    def train(self, documents: Iterable[str]) -> bytes:
        """Learn a .model from documents; the same documents give the same bytes.

        Raises:
            UserError: the trainer cannot learn such a model from the text.
        """
        from sentencepiece import SentencePieceTrainer

        lines = (line for document in documents for line in document.split("\n") if line)
        step = max(1.0, letters_of(documents) / self.train_bytes)
        if self.sample is None:
            step = math.ceil(step)
        model = io.BytesIO()
        try:
            SentencePieceTrainer.train(
                sentence_iterator=(line for n, line in enumerate(lines) if n % step < 1),
                model_writer=model,
                model_type="unigram",
                vocab_size=self.vocab_size,
                hard_vocab_limit=False,
                character_coverage=self.character_coverage,
                byte_fallback=self.byte_fallback,
                num_threads=self.num_threads,
                max_sentence_length=1 << 24,
                pad_id=0,
                unk_id=1,
                bos_id=2,
                eos_id=3,
                pad_piece=_SPECIAL["pad"][0],
                unk_piece=_SPECIAL["unk"][0],
                bos_piece=_SPECIAL["cls"][0],
                eos_piece=_SPECIAL["sep"][0],
                control_symbols=[_SPECIAL["mask"][0]],
                minloglevel=2,
            )
        except RuntimeError as error:
            reason = " ".join(str(error).split()).rpartition("] ")[2]
            if "vocab" not in reason.lower():  # words on the trainer's own source
                reason = "it has to hold the special pieces and every character; raise it"
            raise UserError(
                f"tokenizer.vocab_size={self.vocab_size} cannot be learnt from this text: {reason}"
            ) from error
        return model.getvalue()


class SentencePieceTokenizer(Tokenizer):
    """Tokenizer of a .model; special pieces that the model lacks are appended to the vocabulary."""

    def __init__(self, model: bytes, name: str = "the model") -> None:
        from sentencepiece import SentencePieceProcessor

        try:
            self.processor = SentencePieceProcessor(model_proto=model)
        except RuntimeError as error:
            raise UserError(f"tokenizer.path={name} is not a SentencePiece model") from error
        self.model = model
        self.pieces = size = self.processor.get_piece_size()
        if not size:
            raise UserError(f"tokenizer.path={name} is not a SentencePiece model: it is empty")
        unknown = self.processor.unk_id()
        ids = {}
        for role, names in _SPECIAL.items():
            candidates = (self.processor.piece_to_id(piece) for piece in names)
            present = [i for i in candidates if i != unknown]
            ids[role] = unknown if role == "unk" else present[0] if present else size
            size += ids[role] == size
        super().__init__(SpecialIds(**ids), size, hashlib.sha256(model).hexdigest())

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        return [np.array(ids, dtype=np.int64) for ids in self.processor.encode(list(texts))]

    def decode(self, ids: Iterable[int]) -> str:
        kept = [int(i) for i in ids if i < self.pieces and i not in self.special_ids]
        return str(self.processor.decode(kept))

    def _write(self, folder: Path) -> None:
        (folder / _FILE).write_bytes(self.model)

    @classmethod
    def _read(cls, folder: Path, special: SpecialIds, sha256: str) -> Self:
        return cls((folder / _FILE).read_bytes(), str(folder / _FILE))
