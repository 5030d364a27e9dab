"""Instruction data: records from files and from Python's documentation, targets, batches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from chimera.data.batch.collate import collate
from chimera.data.batch.instruct import InstructDataModule, example
from chimera.data.batch.stored import load_examples, save_examples
from chimera.data.corpus.instruct import Instruct, Record, check_instructions, prompt
from chimera.data.corpus.pydocs import PyDocs
from chimera.data.tokenizer.base import Template
from chimera.errors import UserError
from tests.outside import DATA

ALPACA = DATA / "instruct/alpaca_2000.json"


class Letters:
    """Tokenizer with one token per letter; 0 is padding, 1 the start, 2 the end."""

    sep_id, pad_id, template = 2, 0, Template((1,), (2,), (2,))

    def encode(self, texts: list[str]) -> list[np.ndarray]:
        return [np.array([ord(c) for c in text], dtype=np.int64) for text in texts]


def made(count: int) -> list[dict[str, str]]:
    return [
        {"instruction": f"Do {i}.", "input": "x" * (i % 3), "output": f"{i}"} for i in range(count)
    ]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "some.json").write_text(json.dumps(made(60)))
    return tmp_path / "some.json"


def test_the_template() -> None:
    assert prompt("Add.") == "### Instruction:\nAdd.\n\n### Response:\n"
    assert prompt("Add.", "1, 2") == (
        "### Instruction:\nAdd.\n\n### Input:\n1, 2\n\n### Response:\n"
    )


def test_splits_are_disjoint_and_independent_of_the_order(file: Path) -> None:
    corpus = Instruct(path=str(file), samples=40, held_out=5)
    found = corpus.records()
    assert [(s, len(r)) for s, r in found.items()] == [("train", 40), ("valid", 5), ("test", 5)]
    assert len({record for records in found.values() for record in records}) == 50
    before = corpus.fingerprint()
    file.write_text("\n".join(json.dumps(row) for row in reversed(made(60))))
    assert corpus.records() == found  # JSON lines, too
    assert corpus.fingerprint() != before
    assert len(Instruct(path=str(file), samples=999, held_out=99).records()["valid"]) == 6


def test_targets_are_the_tokens_of_the_answer() -> None:
    record = Record("ask:", "ok")
    one = example(7, record, Letters(), 100, (1,))  # type: ignore[arg-type]
    row = [1, *map(ord, "ask:ok"), 2]
    assert one.ids.tolist() == row[:-1]
    assert one.positions.tolist() == [4, 5, 6]  # the prompt's last token gives the answer's first
    assert one.targets.tolist() == [ord("o"), ord("k"), 2]
    long = example(7, record, Letters(), 6, (1,))  # type: ignore[arg-type]
    assert long.ids.tolist() == row[:6]
    assert long.targets.tolist() == [ord("o"), ord("k")]
    tiny = example(7, record, Letters(), 3, (1,))  # type: ignore[arg-type]
    assert tiny.ids.tolist() == [1, ord(":"), ord("o")][: len(tiny.ids)]
    assert tiny.targets.tolist()[0] == ord("o")


def test_batches_and_the_saved_test_split(tmp_path: Path) -> None:
    records = [Record("a:" * (i + 1), "yes" * (3 - i)) for i in range(3)]
    found = [example(i, r, Letters(), 50, (1,)) for i, r in enumerate(records)]  # type: ignore[arg-type]
    batch: dict[str, Any] = collate(found, pad_id=0)
    assert batch["ids"].shape == batch["mask"].shape
    flat = batch["ids"].flatten()
    told = [flat[i + 1] for i in batch["index"] if i + 1 < len(flat)]
    same = [t == s for t, s in zip(batch["targets"], told, strict=False) if s]
    assert sum(same) >= len(same) - 3  # but the end token, which is no input
    assert batch["targets"].tolist() == [t for r in records for t in (*map(ord, r.answer), 2)]
    save_examples(found, tmp_path / "test.npz")
    for a, b in zip(load_examples(tmp_path / "test.npz"), found, strict=True):
        assert all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))
    stored = dict(np.load(tmp_path / "test.npz"))
    for wrong in ({"lengths": stored["lengths"][:1]}, {"counts": -stored["counts"]}):
        np.savez(tmp_path / "wrong.npz", **{**stored, **wrong})
        with pytest.raises(UserError, match=r"wrong.npz is damaged"):
            load_examples(tmp_path / "wrong.npz")
    module = InstructDataModule(Instruct(batch_size=2), None)  # type: ignore[arg-type]
    module.load_test(tmp_path / "test.npz")
    batches = list(module.test_dataloader())
    assert [len(b["ids"]) for b in batches] == [2, 1]
    assert torch.equal(torch.cat([b["indices"] for b in batches]), torch.arange(3))


@pytest.mark.slow
def test_records_are_made_from_pythons_documentation(tmp_path: Path) -> None:
    corpus = Instruct(cache_dir=str(tmp_path))
    corpus.check()
    found = corpus.records()
    assert {split: len(records) for split, records in found.items()} == {
        "train": 500,
        "valid": 100,
        "test": 100,
    }
    for record in found["valid"]:
        assert "### Input:\ndef " in record.prompt
        assert record.answer.endswith(".")
        assert "\n" not in record.answer
    answers = {r.answer for r in found["train"]}
    assert not answers & {r.answer for r in found["valid"]}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[{"instruction": "x"}]', "record 1 has no text in output"),
        ('[{"instruction": "x", "output": "y"}]', "1 records with an answer"),
        ('[{"instruction": ', "is not JSON"),
        ("[3]", "record 1 has no text in instruction"),
    ],
)
def test_broken_records_and_wrong_data_are_refused(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(UserError, match=says):
        Instruct(path=str(tmp_path / "a.json")).records()
    with pytest.raises(UserError, match="does not exist"):
        Instruct(path=str(tmp_path / "b.json")).check()
    with pytest.raises(UserError, match="use data=instruct or data=alpaca"):
        check_instructions(PyDocs())


def test_real_records(file: Path) -> None:
    corpus = Instruct(path=str(ALPACA if ALPACA.exists() else file), samples=40, held_out=5)
    records = corpus.records()["train"]
    assert len(records) == 40
    assert all(r.prompt.startswith("### Instruction:\n") and r.answer for r in records)
