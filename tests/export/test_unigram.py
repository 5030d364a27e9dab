"""The fast tokenizer of a SentencePiece model gives our ids and texts."""

from __future__ import annotations

import inspect
import json
import textwrap
import unicodedata
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from chimera.data.tokenizer.sentence_piece import SentencePiece, SentencePieceTokenizer
from chimera.export.hf import tokenizer

#: Marks, ligatures, wide and narrow forms, joined emoji, spaces and controls, our own signs.
TEXTS = [
    "", " ", "  \n ", "a", " a  b ", "a\tb\r\nc\u2028d\u3000e\u00a0f\x85", "\ufeffx\u200by\u00ad",
    "naïve café", unicodedata.normalize("NFD", "Tiếng Việt, Ünïcödé Ǻ ǖ"), "ﬁne ① ½ ℌ ㎏ ﷺ",
    "привет Ελλάδα שָׁלוֹם مرحبا हिन्दी ภาษาไทย", "漢字かなカナ ｶﾞｷﾞﾊﾟ 한글 ＡＢＣ～", "🙂👨‍👩‍👧‍👦🇩🇪 𝒳 𐍈",
    "▁ a▁b ▁▁", "\x00\x01\x7f", "x" * 300, "<s> <unk> [ PAD ] <0x4", "İstanbul ß ẞ ŉ", "'\"`´“”…—",
]  # fmt: skip


@cache
def built(byte_fallback: bool = True) -> SentencePieceTokenizer:
    documents = [inspect.getsource(textwrap), "naïve café Ελλάδα 漢字 привет " * 20]
    made = SentencePiece(vocab_size=600, num_threads=1, byte_fallback=byte_fallback).build(
        documents
    )
    assert isinstance(made, SentencePieceTokenizer)
    return made


def check(texts: list[str], *, byte_fallback: bool = True) -> None:
    ours = built(byte_fallback)
    fast = tokenizer.unigram(ours)
    encoded = fast.encode_batch(texts, add_special_tokens=False)
    other = 0
    for text, want, got in zip(texts, ours.encode(texts), encoded, strict=True):
        # The same pieces in another order are as probable: the last bit of a sum decides.
        assert sorted(got.ids) == sorted(want.tolist()), ascii(text)
        other += got.ids != want.tolist()
        assert fast.decode(got.ids) == ours.decode(got.ids), ascii(text)
    assert other <= len(texts) / 200


@pytest.mark.parametrize("byte_fallback", [True, False])
def test_ids_and_texts_are_ours(byte_fallback: bool) -> None:
    lines = inspect.getsource(inspect).split("\n")
    check([*TEXTS, *lines, " ".join(lines[:40])], byte_fallback=byte_fallback)


@pytest.mark.slow
def test_every_character_is_ours() -> None:
    codes = [c for c in range(0x30000) if not 0xD800 <= c < 0xE000]
    # U+0344 is two marks for Unicode and a character of its own for SentencePiece; U+FDD0 is none.
    check([f"a{chr(c)}b" for c in codes if c not in (0x344, 0xFDD0)])


@given(st.text(st.characters(codec="utf-8", exclude_characters="\u0344\ufdd0"), max_size=20))
def test_any_text_in_canonical_order_is_ours(text: str) -> None:
    check([unicodedata.normalize("NFC", text), unicodedata.normalize("NFD", text)])


def test_ids_of_any_kind_give_our_text() -> None:
    ours, draw = built(), np.random.default_rng(0)
    fast, going_on = tokenizer.unigram(ours), tokenizer.unigram(ours, continues=True)
    # Bytes only as whole characters: of a run with a broken one the library shows none.
    pieces = [i for i in range(ours.pieces) if not ours.processor.is_byte(i)]
    for _ in range(200):
        ids = draw.choice(pieces, size=8).tolist()
        assert fast.decode(ids) == ours.decode(ids)
        assert going_on.decode(ids).lstrip() == ours.decode(ids).lstrip()
    assert going_on.decode(ours.encode(["cat"])[0].tolist()) == " cat"


def test_transformers_loads_it_with_special_tokens_by_role(tmp_path: Path) -> None:
    ours = built()
    middle = ours.encode(["the cat"])[0].tolist()
    for opening in (None, [], [ours.cls_id], [ours.sep_id]):
        decodes = opening is not None
        assert tokenizer.write(ours, tmp_path, opening=opening, max_len=64) is None
        theirs = AutoTokenizer.from_pretrained(tmp_path)
        start, end = ([ours.cls_id], [ours.sep_id]) if opening is None else (opening, [])
        assert theirs("the cat")["input_ids"] == [*start, *middle, *end]
        assert theirs("the cat", add_special_tokens=False)["input_ids"] == middle
        ids = theirs("the [MASK] cat", add_special_tokens=False)["input_ids"]
        assert ids.count(theirs.mask_token_id) == 1
        assert [i for i in ids if i != ours.mask_id] == middle
        assert (theirs.pad_token_id, theirs.mask_token_id) == (ours.pad_id, ours.mask_id)
        assert theirs.eos_token_id == (ours.sep_id if decodes else None)
        assert theirs.bos_token_id == ([*start, ours.sep_id][0] if decodes else None)
        assert theirs.padding_side == ("left" if decodes else "right")
        assert theirs.model_max_length == 64
        assert len(theirs) == ours.vocab_size
        again = tmp_path / "again"
        theirs.save_pretrained(again)
        assert AutoTokenizer.from_pretrained(again)("the cat")["input_ids"] == [
            *start, *middle, *end,
        ]  # fmt: skip


def test_roles_that_a_model_lacks_get_the_next_ids() -> None:
    from sentencepiece import sentencepiece_model_pb2 as format

    model = format.ModelProto.FromString(built().model)
    names = {"[PAD]": "⁇1", "[MASK]": "⁇2"}
    for piece in model.pieces:
        piece.piece = names.get(piece.piece, piece.piece)
    ours = SentencePieceTokenizer(model.SerializeToString())
    assert ours.vocab_size == ours.pieces + 2
    fast = tokenizer.unigram(ours)
    assert fast.get_vocab_size() == ours.vocab_size
    assert fast.token_to_id("[PAD]") == ours.pad_id
    assert fast.token_to_id("[MASK]") == ours.mask_id


def test_another_kind_of_model_has_none(tmp_path: Path) -> None:
    from sentencepiece import sentencepiece_model_pb2 as format

    model = format.ModelProto.FromString(built().model)
    model.trainer_spec.model_type = format.TrainerSpec.BPE
    ours = SentencePieceTokenizer(built().model)
    ours.model = model.SerializeToString()
    why = tokenizer.write(ours, tmp_path, max_len=64)
    assert why is not None
    assert "another kind than unigram" in why
    assert not list(tmp_path.iterdir())


def test_the_files_name_no_class_of_ours(tmp_path: Path) -> None:
    tokenizer.write(built(), tmp_path, max_len=64)
    about = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert about["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert "auto_map" not in about
