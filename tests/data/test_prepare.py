"""Corpus to tokens, with each stage kept."""

import logging
from pathlib import Path

import pytest

from chimera.data.encode.prepare import prepare
from chimera.data.tokenizer.sentence_piece import SentencePiece
from chimera.data.tokenizer.wordpiece import WordPiece
from tests.data.kit import Toy, bert_vocabulary, small_piece, splits_of


def test_splits_decode_to_their_documents(tmp_path: Path) -> None:
    corpus = Toy(cache_dir=str(tmp_path))
    data = prepare(corpus, SentencePiece(vocab_size=400, num_threads=1))
    for split, documents in splits_of(corpus).items():
        ids = data.splits[split].ids
        assert data.report["splits"][split] == {
            "documents": len(documents),
            "bytes": sum(map(len, documents)),
            "tokens": len(ids),
        }
        ends = (ids == data.tokenizer.sep_id).nonzero()[0]
        assert len(ends) == len(documents)
        starts = [0, *(ends[:-1] + 1)]
        found = [data.tokenizer.decode(ids[a:b]) for a, b in zip(starts, ends, strict=True)]
        assert found == documents


def test_the_second_time_no_text_is_read(tmp_path: Path, monkeypatch, caplog) -> None:
    caplog.set_level(logging.INFO, logger="chimera")
    corpus = Toy(cache_dir=str(tmp_path))
    first = prepare(corpus, small_piece())
    stages = [record.message.partition(":")[0] for record in caplog.records]
    assert stages == ["data", "data", "tokenizer", "tokens"]  # it has no valid and test; it is read
    caplog.clear()
    monkeypatch.setattr(Toy, "sources", lambda self: pytest.fail("read again"))
    monkeypatch.setattr(SentencePiece, "build", lambda *_: pytest.fail("learnt again"))
    second = prepare(corpus, small_piece())
    assert second.report == first.report
    assert not caplog.records


def test_only_what_changed_is_made_again(tmp_path: Path, caplog) -> None:
    caplog.set_level(logging.INFO, logger="chimera")
    settings = WordPiece(path=str(bert_vocabulary(tmp_path)))
    first = prepare(Toy(cache_dir=str(tmp_path)), settings)
    caplog.clear()
    second = prepare(Toy(cache_dir=str(tmp_path), count=300), settings)
    assert "tokenizer:" not in caplog.text
    assert len(second.splits["train"]) > len(first.splits["train"])


def test_older_code_does_not_meet_newer_tokenizers(tmp_path: Path, monkeypatch) -> None:
    corpus = Toy(cache_dir=str(tmp_path))
    now = prepare(corpus, small_piece())
    monkeypatch.setattr("chimera.data.encode.prepare.TOKENIZER_VERSION", 1)
    before = prepare(corpus, small_piece())
    assert len([p for p in (tmp_path / "tokenizer").iterdir() if p.is_dir()]) == 2
    assert now.tokenizer.sha256 == before.tokenizer.sha256
    assert len([p for p in (tmp_path / "tokens").iterdir() if p.is_dir()]) == 1


def test_damaged_tokens_are_packed_again(tmp_path: Path) -> None:
    corpus = Toy(cache_dir=str(tmp_path))
    first = prepare(corpus, small_piece())
    before = first.splits["train"].ids.tolist()
    with first.splits["train"].files[0].open("r+b") as stream:
        stream.truncate(10)
    assert prepare(corpus, small_piece()).splits["train"].ids.tolist() == before


def test_cache_dir_of_the_call_wins(tmp_path: Path) -> None:
    corpus = Toy(cache_dir=str(tmp_path / "unused"))
    prepare(corpus, small_piece(), tmp_path / "used")
    assert sorted(f.name for f in (tmp_path / "used").iterdir()) == [
        "divided",
        "tokenizer",
        "tokens",
    ]
    assert not (tmp_path / "unused").exists()
