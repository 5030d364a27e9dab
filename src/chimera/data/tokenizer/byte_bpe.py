"""Byte-level BPE with GPT-2's vocabulary (SPEC D4; SAIDL 2.1): merges of bytes, no unknown text.

GPT-2 has one special token, <|endoftext|>. It separates documents and is used as class and unknown
token. A masked language model needs two more, [PAD] and [MASK]. They are appended to the vocabulary
(50,257 become 50,259) unless `mlm_tokens` is off; then <|endoftext|> also pads.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from chimera.data.source.cache import file_fingerprint, fingerprint_of
from chimera.data.tokenizer.base import SpecialIds, Tokenizer, TokenizerSettings, locate
from chimera.data.tokenizer.fast import FastTokenizer
from chimera.errors import UserError

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
        fast = Fast(models.BPE.from_file(*map(str, files)))
        fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        fast.decoder = decoders.ByteLevel()
        end = fast.token_to_id(_END)
        if end is None:
            raise UserError(f"tokenizer.path={self.path}: {files[0]} lacks {_END}")
        fast.add_special_tokens([_END, *(["[PAD]", "[MASK]"] if self.mlm_tokens else [])])
        pad = fast.token_to_id("[PAD]") if self.mlm_tokens else end
        mask = fast.token_to_id("[MASK]") if self.mlm_tokens else None
        special = SpecialIds(pad=pad or end, unk=end, cls=end, sep=end, mask=mask)
        return FastTokenizer(fast, special, self.fingerprint(""))
