"""A tokenizer as llama.cpp reads it from a GGUF file.

    SentencePiece unigram   `t5`, llama.cpp's unigram model, with the table of replacements
    byte-level BPE          `gpt2`, with GPT-2's own splitting of texts

llama.cpp's unigram model has no fallback to bytes. The byte pieces of ASCII characters that are no
pieces are written as pieces of these characters, with the score that SentencePiece gives unknown
ones: so they are found. Another character that is no piece becomes [UNK] there, and its bytes here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from chimera.data.tokenizer.base import Tokenizer
from chimera.data.tokenizer.fast import FastTokenizer
from chimera.data.tokenizer.sentence_piece import SentencePieceTokenizer
from chimera.errors import UserError

#: SentencePiece scores an unknown character by this much less than its rarest piece.
PENALTY = 10.0
#: Printed characters of one byte; the space is another piece.
ASCII = frozenset(bytes([code]) for code in range(0x21, 0x7F))
KNOWN = "llama.cpp reads SentencePiece unigram models and byte-level BPE as GPT-2's"


def vocabulary(tokenizer: Tokenizer, opening: Sequence[int]) -> dict[str, Any]:
    """The keys `tokenizer.ggml.…` of a file.

    Args:
        tokenizer: of the model.
        opening: ids before a text, see `Tokenizer.opening`.

    Raises:
        UserError: llama.cpp does not know such a tokenizer.
    """
    if len(opening) > 1:
        raise UserError(f"a text begins with {len(opening)} special tokens; GGUF knows one")
    if isinstance(tokenizer, SentencePieceTokenizer):
        keys = _unigram(tokenizer)
    elif isinstance(tokenizer, FastTokenizer):
        keys = _bytes(tokenizer)
    else:
        raise UserError(f"{type(tokenizer).__name__} has no form in GGUF; {KNOWN}")
    special = tokenizer.special
    return keys | {
        "bos_token_id": (*opening, special.sep)[0],
        "eos_token_id": special.sep,
        "unknown_token_id": special.unk,
        "padding_token_id": special.pad,
        "add_bos_token": bool(opening),
        "add_eos_token": False,
    }


def _unigram(tokenizer: SentencePieceTokenizer) -> dict[str, Any]:
    from gguf import TokenType  # numbered as SentencePiece's
    from sentencepiece import sentencepiece_model_pb2

    format: Any = sentencepiece_model_pb2
    model = format.ModelProto.FromString(tokenizer.model)
    if model.trainer_spec.model_type != format.TrainerSpec.UNIGRAM:
        raise UserError(f"a SentencePiece model that is no unigram has no form in GGUF; {KNOWN}")
    tokens = [piece.piece.encode() for piece in model.pieces]
    types = [TokenType(piece.type) for piece in model.pieces]
    scores = [piece.score for piece in model.pieces]
    known = set(tokens)
    rarest = min(p.score for p in model.pieces if p.type == TokenType.NORMAL)
    for i, kind in enumerate(types):
        letter = bytes([int(tokens[i][1:-1], 16)]) if kind == TokenType.BYTE else b""
        if letter in ASCII and letter not in known:
            tokens[i] = letter
            types[i] = TokenType.NORMAL
            scores[i] = rarest - PENALTY
    names = {i: role for role, i in vars(tokenizer.special).items() if i is not None}
    lacking = range(len(model.pieces), tokenizer.vocab_size)  # special pieces
    how = model.normalizer_spec
    table = how.precompiled_charsmap
    return {
        "model": "t5",
        "tokens": tokens + [f"[{names[i].upper()}]".encode() for i in lacking],
        "token_type": types + [TokenType.CONTROL for _ in lacking],
        "scores": scores + [0.0 for _ in lacking],
        "add_space_prefix": how.add_dummy_prefix,
        "remove_extra_whitespaces": how.remove_extra_whitespaces,
        **({"precompiled_charsmap": table} if table else {}),
    }


def _bytes(tokenizer: FastTokenizer) -> dict[str, Any]:
    from gguf import TokenType

    about = json.loads(tokenizer.fast.to_str())
    splitter = about["pre_tokenizer"] or {}
    byte_level = splitter.get("type") == "ByteLevel" and splitter.get("use_regex", True)
    if about["model"]["type"] != "BPE" or not byte_level or about["normalizer"]:
        raise UserError(f"this tokenizer has no form in GGUF; {KNOWN}")
    names = {i: name for name, i in tokenizer.fast.get_vocab().items()}
    size = tokenizer.vocab_size
    special = set(tokenizer.special_ids)
    return {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": [names.get(i, f"[PAD{i}]").encode() for i in range(size)],
        "token_type": [
            TokenType.CONTROL if i in special or i not in names else TokenType.NORMAL
            for i in range(size)
        ],
        "merges": [m if isinstance(m, str) else " ".join(m) for m in about["model"]["merges"]],
        "add_space_prefix": splitter["add_prefix_space"],
    }
