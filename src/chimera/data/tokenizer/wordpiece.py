"""WordPiece with BERT's vocabularies (SPEC D4; arXiv 1810.04805): greedy longest match in words."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from chimera.data.source.cache import file_fingerprint, fingerprint_of
from chimera.data.tokenizer.base import SpecialIds, Tokenizer, TokenizerSettings, locate
from chimera.data.tokenizer.fast import FastTokenizer
from chimera.errors import UserError

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
        vocabulary = models.WordPiece.read_file(str(file))
        missing = [token for token in _SPECIAL.values() if token not in vocabulary]
        if missing:
            raise UserError(f"tokenizer.path={self.path}: {file} lacks {', '.join(missing)}")
        fast = Fast(models.WordPiece(vocabulary, unk_token=_SPECIAL["unk"]))
        fast.normalizer = normalizers.BertNormalizer(lowercase=self.lowercase)
        fast.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        fast.decoder = decoders.WordPiece()
        fast.add_special_tokens(list(_SPECIAL.values()))
        special = SpecialIds(**{role: vocabulary[token] for role, token in _SPECIAL.items()})
        return FastTokenizer(fast, special, self.fingerprint(""))
