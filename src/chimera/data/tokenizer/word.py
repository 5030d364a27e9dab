"""Tokenizer of whole words (SAIDL 3.7): the most frequent of the training text; others are [UNK].

SAIDL's has [PAD] = 0, [UNK] = 1 and at most 20,000 words. [CLS], [SEP] and [MASK] are added, so
that all tasks can use the tokenizer.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from chimera.data.source.cache import fingerprint_of
from chimera.data.tokenizer.base import SpecialIds, Tokenizer, TokenizerSettings
from chimera.data.tokenizer.fast import FastTokenizer
from chimera.errors import UserError
from chimera.types import PositiveInt

_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


@dataclass(frozen=True, kw_only=True)
class Words(TokenizerSettings):
    """Words and punctuation marks of the training text.

    Args:
        vocab_size: largest number of tokens, special ones included.
        min_count: rarer words are [UNK].
        lowercase: convert text to lower case.
    """

    vocab_size: PositiveInt = 20_000
    min_count: PositiveInt = 1
    lowercase: bool = True

    def check(self) -> None:
        """See `TokenizerSettings.check`."""
        if self.vocab_size <= len(_SPECIAL):
            raise UserError(
                f"tokenizer.vocab_size={self.vocab_size} has no room for a word besides"
                f" {', '.join(_SPECIAL)}; give more than {len(_SPECIAL)}"
            )

    def fingerprint(self, corpus: str) -> str:
        """Hash of the corpus and all settings."""
        return fingerprint_of("words", 1, corpus, self)

    @property
    def learns(self) -> bool:
        """See `TokenizerSettings.learns`."""
        return True

    def build(self, documents: Iterable[str]) -> Tokenizer:
        """See `TokenizerSettings.build`."""
        from tokenizers import Tokenizer as Fast
        from tokenizers import decoders, models

        normalizer, splitter = self._parts()
        counts = counted(
            [word for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(document))]
            for document in documents
        )
        kept = _most_common(counts, self.vocab_size - len(_SPECIAL), self.min_count)
        vocabulary = {word: i for i, word in enumerate((*_SPECIAL, *kept))}
        fast = Fast(models.WordLevel(vocabulary, unk_token="[UNK]"))
        fast.normalizer = normalizer
        fast.pre_tokenizer = splitter
        # No word begins with \0, so the decoder joins all words by blanks; its clean-up removes
        # blanks before punctuation marks.
        fast.decoder = decoders.WordPiece(prefix="\0", cleanup=True)
        fast.add_special_tokens(list(_SPECIAL))
        digest = hashlib.sha256(repr((sorted(vocabulary.items()), self)).encode()).hexdigest()
        return FastTokenizer(fast, SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4), digest)

    def _parts(self) -> tuple[Any, Any]:
        from tokenizers import normalizers, pre_tokenizers

        steps = [normalizers.NFC(), *([normalizers.Lowercase()] if self.lowercase else [])]
        return normalizers.Sequence(steps), pre_tokenizers.BertPreTokenizer()


def counted(texts: Iterable[Iterable[str]], most: int = 1 << 22) -> Counter[str]:
    """Count words; of more than `most` distinct ones forget the rarest, so that memory is bounded.

    Args:
        texts: words of each document.
        most: distinct words that are counted at once.
    """
    counts: Counter[str] = Counter()
    rare = 0
    for words in texts:
        counts.update(words)
        while len(counts) > most:
            rare += 1
            counts = Counter({word: n for word, n in counts.items() if n > rare})
    return counts


def _most_common(counts: Counter[str], size: int, min_count: int) -> Iterable[str]:
    """The most frequent words; words of the same frequency in alphabetical order."""
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    # A word of the text that equals a special token's name gets no id.
    return [w for w, n in ranked if n >= min_count and w not in _SPECIAL][:size]
