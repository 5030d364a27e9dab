"""A tokenizer as llama.cpp reads it from a GGUF file.

    SentencePiece unigram   `t5`, llama.cpp's unigram model, with the table of replacements
    byte-level BPE          `gpt2`, with GPT-2's own splitting of texts

llama.cpp's unigram model has no fallback to bytes. The byte pieces of ASCII characters that are no
pieces are written as pieces of these characters, with the score that SentencePiece gives unknown
ones: so they are found. Another character that is no piece becomes [UNK] there, and its bytes here.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from chimera.data.tokenizer.base import Tokenizer
from chimera.data.tokenizer.fast import FastTokenizer
from chimera.data.tokenizer.sentence_piece import SentencePieceTokenizer
from chimera.errors import UserError

#: Types of pieces in SentencePiece's format and in GGUF.
NORMAL = 1
UNKNOWN = 2
CONTROL = 3
USER = 4
BYTE = 6
#: SentencePiece scores an unknown character by this much less than its rarest piece.
PENALTY = 10.0
UNIGRAM = 1
#: Printed characters of one byte; the space is another piece.
ASCII = frozenset(bytes([code]) for code in range(0x21, 0x7F))
KNOWN = "llama.cpp reads SentencePiece unigram models and byte-level BPE as GPT-2's"


@dataclass
class Vocabulary:
    """Keys of a GGUF file without `tokenizer.ggml.`.

    Args:
        model: kind of tokenizer, `t5` or `gpt2`.
        tokens: texts by id.
        types: of the tokens.
        scores: logarithmic probabilities; empty without.
        merges: of a BPE; empty without.
        settings: others, by llama.cpp's name.
    """

    model: str
    tokens: list[bytes]
    types: list[int]
    scores: list[float] = field(default_factory=list)
    merges: list[str] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)


def vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    """The vocabulary of a tokenizer; a text begins with the token that ends documents.

    Raises:
        UserError: llama.cpp does not know such a tokenizer.
    """
    if isinstance(tokenizer, SentencePieceTokenizer):
        made = _unigram(tokenizer)
    elif isinstance(tokenizer, FastTokenizer):
        made = _bytes(tokenizer)
    else:
        raise UserError(f"{type(tokenizer).__name__} has no form in GGUF; {KNOWN}")
    special = tokenizer.special
    made.settings |= {
        "bos_token_id": special.sep,
        "eos_token_id": special.sep,
        "unknown_token_id": special.unk,
        "padding_token_id": special.pad,
        "add_bos_token": True,
        "add_eos_token": False,
    }
    return made


def _unigram(tokenizer: SentencePieceTokenizer) -> Vocabulary:
    from sentencepiece import sentencepiece_model_pb2

    format: Any = sentencepiece_model_pb2
    model = format.ModelProto.FromString(tokenizer.model)
    if model.trainer_spec.model_type != UNIGRAM:
        raise UserError(f"a SentencePiece model that is no unigram has no form in GGUF; {KNOWN}")
    made = Vocabulary(
        "t5",
        [piece.piece.encode() for piece in model.pieces],
        [piece.type for piece in model.pieces],
        [piece.score for piece in model.pieces],
    )
    known = set(made.tokens)
    rarest = min(p.score for p in model.pieces if p.type == NORMAL)
    for i, kind in enumerate(made.types):
        letter = bytes([int(made.tokens[i][1:-1], 16)]) if kind == BYTE else b""
        if letter in ASCII and letter not in known:
            made.tokens[i], made.types[i], made.scores[i] = letter, NORMAL, rarest - PENALTY
    names = {i: role for role, i in vars(tokenizer.special).items() if i is not None}
    for i in range(len(model.pieces), tokenizer.vocab_size):  # special pieces that it lacks
        made.tokens.append(f"[{names[i].upper()}]".encode())
        made.types.append(CONTROL)
        made.scores.append(0.0)
    how = model.normalizer_spec
    made.settings = {
        "add_space_prefix": how.add_dummy_prefix,
        "remove_extra_whitespaces": how.remove_extra_whitespaces,
    }
    if how.precompiled_charsmap:
        made.settings["precompiled_charsmap"] = how.precompiled_charsmap
    return made


def _bytes(tokenizer: FastTokenizer) -> Vocabulary:
    about = json.loads(tokenizer.fast.to_str())
    splitter = about["pre_tokenizer"] or {}
    byte_level = splitter.get("type") == "ByteLevel" and splitter.get("use_regex", True)
    if about["model"]["type"] != "BPE" or not byte_level or about["normalizer"]:
        raise UserError(f"this tokenizer has no form in GGUF; {KNOWN}")
    names = {i: name for name, i in tokenizer.fast.get_vocab().items()}
    size = tokenizer.vocab_size
    special = set(tokenizer.special_ids)
    return Vocabulary(
        "gpt2",
        [names.get(i, f"[PAD{i}]").encode() for i in range(size)],
        [CONTROL if i in special or i not in names else NORMAL for i in range(size)],
        merges=[m if isinstance(m, str) else " ".join(m) for m in about["model"]["merges"]],
        settings={"pre": "gpt-2", "add_space_prefix": splitter["add_prefix_space"]},
    )
