"""Examples with labels and with answers: rows that are read, one-line errors, encoding, batches."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from chimera.data.batch.collate import collate as collate_answers
from chimera.data.batch.collate import load_examples, save_examples
from chimera.data.batch.instruct import InstructDataModule, example
from chimera.data.batch.labelled import BucketedLoader, Rows, collate
from chimera.data.batch.loader import ResumableLoader
from chimera.data.corpus.acceptability import Acceptability
from chimera.data.corpus.glue import SPECS, Glue, SpanishGlue, read_file, read_hub
from chimera.data.corpus.instruct import Instruct, Record, check_instructions, prompt
from chimera.data.corpus.labelled import Example, evenly
from chimera.data.corpus.pydocs import PyDocs
from chimera.data.encode.examples import (
    encode,
    frame,
    load_parts,
    prepare_examples,
    save_parts,
)
from chimera.data.tokenizer.base import Template
from chimera.data.tokenizer.word import Words
from chimera.errors import UserError
from tests.data.glue import cola, mnli, sentence, stsb, tokenizer
from tests.data.kit import Numbers
from tests.outside import DATA
from tests.outside import DATA as SHARED

#: Rows of the official parts; of those that are only sampled in the shared folder, none.
OFFICIAL = {
    "cola": {"train": 8551, "valid": 1043, "test": 1063},
    "sst2": {"train": 67349, "valid": 872, "test": 1821},
    "mrpc": {"train": 3668, "valid": 408, "test": 1725},
    "stsb": {"train": 5749, "valid": 1500, "test": 1379},
    "qnli": {"valid": 5463, "test": 5463},
    "rte": {"train": 2490, "valid": 277, "test": 3000},
    "wnli": {"train": 635, "valid": 71, "test": 146},
    "mnli": {"ax": 1104},
    "xnli_es": {"valid": 2490, "test": 5010},
    "pawsx_es": {"valid": 2000},
    "stsb_es": {"train": 5749, "valid": 1500, "test": 1379},
}


@pytest.mark.parametrize("task", [*OFFICIAL])
def test_the_files_have_the_official_number_of_rows(task: str, tmp_path: Path) -> None:
    spanish = task.endswith("_es")
    root = SHARED / ("es_glue" if spanish else "glue")
    if not root.is_dir():  # without the shared data, read invented files
        assert len(Glue(task="cola", path=str(cola(tmp_path))).examples()["train"]) == 80
        return
    more = {"train_file": "dev.tsv"} if task == "pawsx_es" else {}
    found = (SpanishGlue if spanish else Glue)(task=task, path=str(root), **more).examples()  # type: ignore[arg-type]
    assert OFFICIAL[task].items() <= {part: len(rows) for part, rows in found.items()}.items()
    labels = {e.label for e in found["valid"]}
    assert None not in labels
    assert not SPECS[task].labels or labels == set(range(len(SPECS[task].labels)))


def test_a_lone_quote_in_tsv_and_a_quoted_comma_in_csv_stay_in_the_field(tmp_path: Path) -> None:
    rows = Glue(task="cola", path=str(cola(tmp_path))).examples()["train"]
    assert len(rows) == 80
    assert all(e.first.endswith(' "') for e in rows)
    csv = tmp_path / "train.csv"
    csv.write_text('"Uno, dos.",Tres.,2.5\r\n"Él dijo ""sí"".",No.,0\r\n')
    found = read_file(csv, SPECS["stsb_es"], labelled=True)
    assert found[0] == Example("Uno, dos.", "Tres.", 2.5, 0)
    assert found[1].first == 'Él dijo "sí".'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("sentence\tother\nA cat.\t1\n", "has no column label; it has sentence, other"),
        ("label\tother\n1\tA cat.\n", "has no column sentence; it has label, other"),
        ("x\ty\n", "has no column sentence; its first row is x, y"),
        ("sentence\tlabel\nA cat.\t7\n", "line 2: label '7' is none of 0, 1"),
        ("sentence\tlabel\nA cat.\n", "line 2 has 1 fields, 2 are needed"),
        ("sentence\tlabel\n", "holds no rows"),
        ("sentence\tlabel\nA cat.\t" + "1" * 5000, "line 2: label '1{100}' is none of 0, 1"),
        ("gj04\t1\t\tA\tcat.\n", "line 1 has 5 fields, and the table 4 columns"),
    ],
)
def test_a_broken_file_gives_one_line(text: str, says: str, tmp_path: Path) -> None:
    (cola(tmp_path) / "CoLA/train.tsv").write_text(text)
    with pytest.raises(UserError, match=says) as error:
        Glue(task="cola", path=str(tmp_path)).examples()
    assert "\n" not in str(error.value)


def test_a_missing_file_names_the_existing_ones_and_another_can_be_chosen(tmp_path: Path) -> None:
    cola(tmp_path)
    (tmp_path / "CoLA/train.tsv").rename(tmp_path / "CoLA/mine.tsv")
    with pytest.raises(UserError, match=r"no train.tsv or train_9k.tsv \(it has dev.tsv, mine"):
        Glue(task="cola", path=str(tmp_path)).check()
    mine = Glue(task="cola", path=str(tmp_path / "CoLA"), train_file="mine.tsv")
    assert len(mine.examples()["train"]) == 80
    with pytest.raises(UserError, match="is no folder"):
        Glue(task="cola", path=str(tmp_path / "nowhere")).check()


def test_a_score_out_of_range_is_refused_and_a_broken_row_of_qqp_skipped(tmp_path: Path) -> None:
    file = tmp_path / "f.tsv"
    file.write_text("sentence1\tsentence2\tscore\na\tb\t5.5\n")
    with pytest.raises(UserError, match=r"score '5\.5' is no number from 0 to 5"):
        read_file(file, SPECS["stsb"], labelled=True)
    file.write_text("question1\tquestion2\tis_duplicate\na\tb\t1\ntorn\nc\td\t0\n")
    assert [e.label for e in read_file(file, SPECS["qqp"], labelled=True)] == [1, 0]


class HubRows(list):  # type: ignore[type-arg]
    """The part of a hub data set's interface that is used."""

    column_names = ("premise", "hypothesis", "label", "idx")


def test_rows_of_the_hub_become_examples() -> None:
    rows = HubRows([{"premise": "p", "hypothesis": "h", "label": i, "idx": 9} for i in (2, -1)])
    found = read_hub(rows, SPECS["mnli"], "here", labelled=False)
    assert found == [Example("p", "h", 2, 9), Example("p", "h", None, 9)]
    rows.column_names = ("premise", "label")
    with pytest.raises(UserError, match="here has no column sentence2 or hypothesis"):
        read_hub(rows, SPECS["mnli"], "here", labelled=True)


def test_pairs_have_special_tokens_and_the_longer_text_is_truncated() -> None:
    template = Template((1,), (2, 2), (3,))
    a, b = np.arange(10, 20), np.arange(30, 34)
    row, second = frame(a, b, template, 100)
    assert row.tolist() == [1, *range(10, 20), 2, 2, *range(30, 34), 3]
    assert second == 5
    for length in range(6, 18):
        row, second = frame(a, b, template, length)
        firsts = [i for i in row if 10 <= i < 20]
        seconds = [i for i in row if i >= 30]
        assert len(row) == length
        assert second == len(seconds) + 1
        # The shorter text is cut only once both have the same length.
        assert len(seconds) == min(4, (length - 4) // 2)
        assert len(firsts) == length - 4 - len(seconds)
    assert frame(b, a, template, 12)[0].tolist() == [1, *b, 2, 2, *a[:4], 3]
    assert frame(a, None, template, 5)[0].tolist() == [1, 10, 11, 12, 3]
    with pytest.raises(UserError, match="leaves no room"):
        frame(a, b, template, 4)


def test_a_batch_is_padded_to_its_longest_row_and_has_segments() -> None:
    made = encode(
        [Example("the cat", "a dog", 1, 0), Example("the big red dog", "a cat", 0, 1)],
        tokenizer(),
        32,
    )
    batch = collate([Rows([made])[0, i] for i in range(2)], pad_id=0)
    assert batch["ids"].shape == (2, 9)
    assert batch["mask"].tolist() == [[True] * 7 + [False] * 2, [True] * 9]
    assert batch["segments"].tolist() == [[0, 0, 0, 0, 1, 1, 1, 0, 0], [0] * 6 + [1] * 3]
    assert batch["labels"].tolist() == [1, 0]


def parts(count: int = 1000) -> Rows:
    rng = np.random.default_rng(0)
    rows = [Example(sentence(rng, 3, 60), None, int(i % 2), i) for i in range(count)]
    return Rows([encode(rows, tokenizer(), 128)])


def test_bucketing_pads_little_is_repeatable_and_resumes() -> None:
    held = parts()
    pad = partial(collate, pad_id=0)
    make = lambda: BucketedLoader(held, 8, pad, seed=3)  # noqa: E731
    whole = [batch["indices"].tolist() for batch in make()]
    assert [b["indices"].tolist() for b in make()] == whole
    assert sorted(i for batch in whole for i in batch) == list(range(1000))
    first = make()
    iterator = iter(first)
    seen = [next(iterator)["indices"].tolist() for _ in range(40)]
    second = make()
    second.load_state_dict(first.state_dict())
    assert seen + [b["indices"].tolist() for b in second] == whole
    padded = sum(batch["ids"].numel() for batch in make())
    plain = ResumableLoader(held, 8, pad, shuffle=False, drop_last=False)
    unsorted = sum(batch["ids"].numel() for batch in plain)
    real = int(held.lengths.sum())
    assert padded - real < 0.15 * (unsorted - real)
    again = iter(first)
    assert {tuple(b["indices"].tolist()) for b in again} != set(map(tuple, whole))  # epoch 2


@pytest.mark.parametrize("longest_left_out", [False, True])
def test_what_makes_no_whole_batch_is_left_out_at_random(longest_left_out: bool) -> None:
    """With revision null (the runs of before) it is always the longest examples."""
    held = Rows(parts(29).parts, longest_left_out=longest_left_out)
    loader = BucketedLoader(held, 8, partial(collate, pad_id=0))
    left_out = set(range(29))
    for _ in range(30):
        left_out -= {i for batch in loader for i in batch["indices"].tolist()}
    assert left_out == set(np.argsort(held.lengths, kind="stable")[24:] if longest_left_out else ())


def test_rows_without_a_label_are_left_out_of_train_and_told(tmp_path: Path, caplog) -> None:
    (tmp_path / "a.tsv").write_text("sentence\tlabel\na\t1\n\nb\t-1\nc\t-1\n")
    found = read_file(tmp_path / "a.tsv", SPECS["sst2"], labelled=True)
    assert found == [Example("a", None, 1, 0)]
    assert "a.tsv: line 4 and 1 more: left out, without a label" in caplog.text
    assert len(read_file(tmp_path / "a.tsv", SPECS["sst2"], labelled=False)) == 3


@pytest.mark.parametrize("index", ["1" * 20, "1" * 5000, "x"])
def test_an_index_that_is_no_number_of_a_row_does_not_count(tmp_path: Path, index: str) -> None:
    (tmp_path / "a.tsv").write_text(f"index\tsentence\tlabel\n{index}\ta\t1\n7\tb\t0\n")
    found = read_file(tmp_path / "a.tsv", SPECS["sst2"], labelled=True)
    assert [e.row for e in found] == [0, 7]


def test_examples_that_are_cut_are_counted(caplog) -> None:
    examples = [Example("5 6 7", None, 0, 0), Example("5 6 7 8", None, 0, 1)]
    encode(examples, Numbers(99), 6)
    assert not caplog.text
    encode(examples, Numbers(99), 5)
    assert "1 of 2 examples are longer than data.seq_len=5" in caplog.text


def test_saved_parts_are_loaded_again(tmp_path: Path) -> None:
    held = parts(20).parts[0]
    save_parts({"test": held, "ax": held}, tmp_path / "t.npz")
    back = load_parts(tmp_path / "t.npz")
    assert list(back) == ["test", "ax"]
    assert all(np.array_equal(held.row(i), back["ax"].row(i)) for i in range(20))
    for wrong in ({"ends": held.ends[::-1]}, {"labels": held.labels[:3]}, {"ids": held.ids[:-1]}):
        save_parts({"test": replace(held, **wrong)}, tmp_path / "t.npz")  # type: ignore[arg-type]
        with pytest.raises(UserError, match=r"t.npz: test is damaged"):
            load_parts(tmp_path / "t.npz")


def test_prepared_examples_come_from_the_cache(tmp_path: Path, monkeypatch) -> None:
    corpus = Glue(task="mnli", path=str(mnli(tmp_path / "g")), cache_dir=str(tmp_path / "c"))
    first = prepare_examples(corpus, Words())
    assert {p: len(s) for p, s in first.splits.items()} == {
        "train": 60,
        "valid": 9,
        "valid_mismatched": 6,
        "test": 5,
        "test_mismatched": 4,
    }
    assert np.isnan(first.splits["test"].labels).all()

    def never(self: Glue) -> None:
        raise AssertionError("read again")

    monkeypatch.setattr(Glue, "examples", never)
    second = prepare_examples(corpus, Words())
    assert np.array_equal(first.splits["train"].ids, second.splits["train"].ids)


def test_max_bytes_takes_rows_evenly_from_all_parts_of_the_data(tmp_path: Path) -> None:
    rows = [Example("x" * 10, None, int(i >= 50), i) for i in range(100)]
    kept = evenly(rows, 200)
    assert len(kept) == 20
    assert sum(e.label for e in kept) == 10  # type: ignore[misc]
    assert evenly(rows, None) is rows
    scores = Glue(task="stsb", path=str(stsb(tmp_path)))
    assert len(scores.examples()["valid"]) == 15


@pytest.mark.slow
def test_acceptability_keeps_a_sentence_and_its_corrupted_copy_in_one_split(tmp_path: Path) -> None:
    corpus = Acceptability(pairs=300)
    found = corpus.examples()
    assert {p: len(rows) for p, rows in found.items()} == {"train": 600, "valid": 62, "test": 62}
    for rows in found.values():
        for good, bad in zip(rows[::2], rows[1::2], strict=True):
            assert (good.label, bad.label) == (1, 0)
            assert good.first != bad.first
            words = set(good.first.lower()[:-1].split())
            assert len(set(bad.first.lower()[:-1].split()) - words) <= 1
    texts = [{e.first for e in rows} for rows in found.values()]
    assert not texts[0] & (texts[1] | texts[2])
    assert not texts[1] & texts[2]
    assert corpus.examples() == found
    assert Acceptability(pairs=300, twin_seed=1).examples() != found


ALPACA = DATA / "instruct/alpaca_2000.json"


class Letters:
    """Tokenizer with one token per letter; 0 is padding, 1 the start, 2 the end."""

    sep_id, pad_id, template = 2, 0, Template((1,), (2,), (2,))

    def encode(self, texts: list[str]) -> list[np.ndarray]:
        return [np.array([ord(c) for c in text], dtype=np.int64) for text in texts]

    def opening(self, *, packed: bool) -> tuple[int, ...]:
        return (1,)


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


def test_records_that_are_cut_are_counted(file: Path, caplog) -> None:
    rows = made(60)
    rows[0]["instruction"] = "long " * 99
    file.write_text(json.dumps(rows))
    prepared: Any = SimpleNamespace(tokenizer=Letters())
    for length, said in ((700, False), (300, True)):
        corpus = Instruct(path=str(file), held_out=1, samples=99, seq_len=length)
        data = InstructDataModule(corpus, None, prepared=prepared)  # type: ignore[arg-type]
        splits = corpus.records()
        split = next(s for s in splits if any("long" in r.prompt for r in splits[s]))
        data._samples(split)
        told = (
            f"1 of {len(splits[split])} records of the {split} split are longer than data.seq_len"
        )
        assert (told in caplog.text) == said


def test_every_batch_has_the_width_of_pad_to(file: Path) -> None:
    prepared: Any = SimpleNamespace(tokenizer=Letters())
    shape = {"path": str(file), "held_out": 1, "samples": 99}
    for width in (20, 500):
        corpus = Instruct(**shape, pad_to=width, seq_len=500)
        data = InstructDataModule(corpus, None, prepared=prepared)  # type: ignore[arg-type]
        rows, collated = data._samples("train")
        batch = collated([rows[0, 0]])
        plain = Instruct(**shape, seq_len=min(width, 500))
        whole = InstructDataModule(plain, None, prepared=prepared)  # type: ignore[arg-type]
        other, as_it_is = whole._samples("train")
        alone = as_it_is([other[0, 0]])
        size = alone["ids"].shape[1]
        assert batch["ids"].shape == (1, width)
        assert torch.equal(batch["ids"][:, :size], alone["ids"])
        assert torch.equal(batch["targets"], alone["targets"])
        assert (batch["mask"] is None) == (size == width)
        assert size == 20 if width == 20 else batch["mask"].sum() == size < 500
    with pytest.raises(UserError, match=r"data.pad_to=501 is more than data.seq_len=500"):
        Instruct(**shape, pad_to=501, seq_len=500).check()


def test_records_with_a_blank_text_are_left_out_and_counted(file: Path, caplog) -> None:
    rows = made(60)
    rows[0]["output"] = rows[1]["instruction"] = " \n"
    file.write_text(json.dumps(rows))
    found = Instruct(path=str(file), held_out=5).records()
    assert sum(map(len, found.values())) == 58
    assert "2 records without instruction or output are left out" in caplog.text


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
    batch: dict[str, Any] = collate_answers(found, pad_id=0)
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
