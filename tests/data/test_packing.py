"""Corpus to tokens, with each stage kept; packed rows.

Rows may be in several files, be made by several processes, and by a packing that is killed.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from chimera.data.encode import packing
from chimera.data.encode.packing import PROGRESS, PackedTokens, pack
from chimera.data.encode.prepare import prepare
from chimera.data.tokenizer.fast import WordPiece
from chimera.data.tokenizer.sentence_piece import SentencePiece
from tests.data.kit import (
    ROOT,
    Listed,
    Numbers,
    Toy,
    bert_vocabulary,
    divide,
    packed,
    sentences,
    small_piece,
    splits_of,
)  # fmt: skip


class Killed(Listed):
    """Text whose reader is killed at a document."""

    at = 0

    def documents(self, first: int = 0):
        for number, pair in enumerate(super().documents(first), first):
            if number == self.at:
                os.kill(os.getpid(), signal.SIGKILL)
            yield pair


def text(count: int = 400, kind: type[Listed] = Listed) -> Listed:
    """Documents of numbers, which are their own ids."""
    rng = np.random.default_rng(0)
    texts = [" ".join(map(str, rng.integers(5, 100, rng.integers(1, 40)))) for _ in range(count)]
    return kind(divide(texts))


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many chunks, saved often."""
    for name, value in {"_CHUNK_DOCUMENTS": 7, "_SAVED_BYTES": 900}.items():
        monkeypatch.setattr(packing, name, value)


def test_rows_are_the_documents(tmp_path: Path, monkeypatch) -> None:
    small(monkeypatch)
    documents = text()
    counts = pack(tmp_path, documents, Numbers())
    for split, texts in documents.splits.items():
        rows = [[*map(int, document.split()), Numbers().sep_id] for document in texts]
        tokens = PackedTokens((tmp_path / f"{split}.bin",), "<u2")
        assert tokens.ids[: len(tokens)].tolist() == [*chain.from_iterable(rows)]
        assert len(tokens) == counts[split]["tokens"] == sum(map(len, rows))
        assert counts[split]["documents"] == len(texts)
        assert counts[split]["bytes"] == sum(len(document.encode()) for document in texts)
    assert not (tmp_path / PROGRESS).exists()


@pytest.mark.parametrize("count", [99, 100, 101, 250, 1000])
def test_files_are_sliced_like_one_array(count: int, tmp_path: Path) -> None:
    ids = np.arange(count)
    tokens = packed(tmp_path, ids, size=100)
    assert len(tokens) == len(tokens.ids) == count
    for start, stop in ((0, 5), (95, 105), (90, 400), (99, 100), (0, 5000), (7, 7), (2000, 2009)):
        assert tokens.ids[start:stop].tolist() == ids[start:stop].tolist()


def test_any_number_of_processes_packs_the_same(tmp_path: Path, monkeypatch) -> None:
    small(monkeypatch)
    for processes in (1, 3):
        folder = tmp_path / str(processes)
        folder.mkdir()
        pack(folder, text(), Numbers(), processes)
    assert contents(tmp_path / "1") == contents(tmp_path / "3")


@pytest.mark.parametrize("processes", [1, 2])
def test_a_killed_packing_goes_on(processes: int, tmp_path: Path, monkeypatch) -> None:
    small(monkeypatch)
    for folder in ("whole", "killed"):
        (tmp_path / folder).mkdir()
    expected = pack(tmp_path / "whole", text(), Numbers())
    killed = f"""
import pytest
from pathlib import Path
from tests.data.test_packing import *
small(pytest.MonkeyPatch())
Killed.at = 300
pack(Path({str(tmp_path / "killed")!r}), text(kind=Killed), Numbers(), {processes})
"""
    result = subprocess.run([sys.executable, "-c", killed], cwd=ROOT, check=False)
    assert result.returncode == -signal.SIGKILL
    left = contents(tmp_path / "killed")
    assert PROGRESS in left
    (tmp_path / "killed" / "train.bin").write_bytes(left["train.bin"] + b"torn")
    read: list[int] = []

    class Counted(Listed):
        def documents(self, first: int = 0):
            read.append(first)
            return super().documents(first)

    found = pack(tmp_path / "killed", text(kind=Counted), Numbers(), processes)
    assert found == expected
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")
    assert 100 < read[0] <= 300  # what was saved is not read again


def test_a_row_that_lost_saved_bytes_starts_over(tmp_path: Path, monkeypatch) -> None:
    small(monkeypatch)
    for folder in ("whole", "torn"):
        (tmp_path / folder).mkdir()
    pack(tmp_path / "whole", text(), Numbers())
    rows = packing.Rows(tmp_path / "torn", 2)
    for chunk in packing.chunks_of(list(text().documents())[:100]):
        for part in packing.Encode(Numbers())(chunk):
            rows.append(part)
    rows.save()
    os.truncate(tmp_path / "torn" / "train.bin", 10)
    pack(tmp_path / "torn", text(), Numbers())
    assert contents(tmp_path / "torn") == contents(tmp_path / "whole")


def test_an_error_in_a_worker_is_raised_here(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        pack(tmp_path, Listed({"train": [*sentences(5), "1"]}), Numbers(), 2)


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
