"""SentencePiece unigram (SPEC D4; arXiv 1808.06226, 1804.10959), learnt from the training text.

    P(x) = max over segmentations s of x of Π_i p(s_i)

The trainer's numbers depend on the thread count, so that is a key and not the machine's.
"""

from __future__ import annotations

import hashlib
import io
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from chimera.data.source.fingerprint import file_fingerprint, fingerprint_of
from chimera.data.tokenizer.base import Ids, SpecialIds, Tokenizer
from chimera.errors import UserError
from chimera.types import Fraction, PositiveInt

log = logging.getLogger("chimera")

_FILE = "sentencepiece.model"
#: What special pieces are called, ours first.
_SPECIAL = {
    "pad": ("[PAD]", "<pad>"),
    "unk": ("[UNK]", "<unk>"),
    "cls": ("[CLS]", "<s>"),
    "sep": ("[SEP]", "</s>"),
    "mask": ("[MASK]", "<mask>"),
}


@dataclass(frozen=True, kw_only=True)
class SentencePiece:
    """SentencePiece unigram model.

    Args:
        path: an existing .model; None learns one from the training text.
        vocab_size: pieces, the special ones among them (50,000 in TITAN); fewer if the text does
            not hold as many.
        character_coverage: share of the text's characters that become pieces.
        byte_fallback: spell other characters in 256 byte pieces; without, they are [UNK].
        train_bytes: about how much text is learnt from, lines taken evenly from all of it.
        num_threads: of the trainer; part of what the result is.
    """

    path: str | None = None
    vocab_size: PositiveInt = 4000
    character_coverage: Fraction = 0.9995
    byte_fallback: bool = True
    train_bytes: PositiveInt = 5_000_000
    num_threads: PositiveInt = 4

    def check(self) -> None:
        """See `TokenizerSettings.check`."""
        if self.path is not None and not Path(self.path).expanduser().is_file():
            raise UserError(
                f"tokenizer.path={self.path} is not there; give a SentencePiece .model,"
                " or null to learn one from the corpus"
            )

    def fingerprint(self, corpus: str) -> str:
        """Of the model file; without one, of the corpus and all settings."""
        if self.path is not None:
            return fingerprint_of("sentencepiece", file_fingerprint(Path(self.path).expanduser()))
        return fingerprint_of("sentencepiece", 1, corpus, self)

    @property
    def learns(self) -> bool:
        """See `TokenizerSettings.learns`."""
        return self.path is None

    def build(self, documents: Sequence[str]) -> Tokenizer:
        """See `TokenizerSettings.build`."""
        if self.path is not None:
            return SentencePieceTokenizer(Path(self.path).expanduser().read_bytes(), self.path)
        made = SentencePieceTokenizer(self.train(documents))
        if made.vocab_size < self.vocab_size:
            log.warning(
                "tokenizer: the text holds %d pieces, fewer than tokenizer.vocab_size=%d",
                made.vocab_size,
                self.vocab_size,
            )
        return made

    def train(self, documents: Sequence[str]) -> bytes:
        """The .model learnt from documents; the same bytes for the same documents.

        Raises:
            UserError: the text does not allow it.
        """
        from sentencepiece import SentencePieceTrainer

        lines = [line for document in documents for line in document.split("\n") if line]
        step = -(-sum(map(len, lines)) // self.train_bytes)
        model = io.BytesIO()
        try:
            SentencePieceTrainer.train(
                sentence_iterator=iter(lines[:: max(1, step)]),
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
            raise UserError(
                f"tokenizer.vocab_size={self.vocab_size} cannot be learnt from this text: {reason}"
            ) from error
        return model.getvalue()


class SentencePieceTokenizer(Tokenizer):
    """Runs a .model; special pieces that it lacks are appended to its vocabulary."""

    def __init__(self, model: bytes, name: str = "the model") -> None:
        from sentencepiece import SentencePieceProcessor

        try:
            self.processor = SentencePieceProcessor(model_proto=model)
        except RuntimeError as error:
            raise UserError(f"tokenizer.path={name} is not a SentencePiece model") from error
        self.model = model
        self.pieces = size = self.processor.get_piece_size()
        unknown = self.processor.unk_id()
        ids = {}
        for role, names in _SPECIAL.items():
            candidates = (self.processor.piece_to_id(piece) for piece in names)
            known = [i for i in candidates if i != unknown]
            ids[role] = unknown if role == "unk" else known[0] if known else size
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
        return cls((folder / _FILE).read_bytes())
