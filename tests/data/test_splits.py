"""Documents are divided, completed and bounded; text larger than memory part by part."""

import gzip
import json
from pathlib import Path

import pytest

from chimera.data.corpus.text import Text
from chimera.data.source import splits
from chimera.data.source.cache import file_fingerprint
from chimera.data.source.splits import (
    DividedText,
    TrainText,
    bounded,
    divide_sources,
    divided,
    shares_of,
)
from chimera.errors import UserError
from tests.data.kit import divide, sentences, splits_of, texts_of


def write(file: Path, documents: list[str]) -> None:
    """Each document is a paragraph that is long enough to be a document of its own."""
    file.parent.mkdir(exist_ok=True)
    file.write_text("\n\n".join(documents) + "\n\n\n" + documents[0][:10])


def long(count: int, seed: int = 0, times: int = 30) -> list[str]:
    return [" ".join([text] * times) for text in sentences(count, seed)]


def divided_in(folder: Path, corpus: Text, processes: int = 1) -> DividedText:
    folder.mkdir(exist_ok=True)
    sources = corpus.sources()
    options = {"deduplicate": corpus.deduplicate, "processes": processes}
    return DividedText(folder, divide_sources(folder, sources, corpus.where, **options), sources)


def by_split(text: DividedText) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {"train": [], "valid": [], "test": []}
    for split, document in text.documents():
        found[split].append(document)
    return found


FILES = {
    "one": {"a.txt": long(130)},
    "few": {"a.txt": long(7)},
    "parts": {"a.txt": long(40), "b.txt": long(35, 1), "c.txt": long(1, 2)},
    "no test": {"train.txt": long(60), "dev.txt": long(5, 1)},
    "no train": {"dev.txt": long(60), "test.txt": long(5, 1)},
    "all": {"train.txt": long(30), "dev.txt": long(5, 1), "test.txt": long(4, 2)},
    "a long document": {"a.txt": [*long(60, 3), *long(1, 4, 1200)]},
}


@pytest.mark.parametrize("files", FILES.values(), ids=FILES.keys())
@pytest.mark.parametrize("max_bytes", [None, 90_000])
def test_as_all_at_once(files, max_bytes, tmp_path: Path, monkeypatch) -> None:
    for name, documents in files.items():
        write(tmp_path / "text" / name, documents)
    corpus = Text(path=str(tmp_path / "text"), max_bytes=max_bytes)
    expected = splits_of(corpus)
    monkeypatch.setattr(splits, "_AT_ONCE", 16)
    monkeypatch.setattr(splits, "_WRITTEN_AT_ONCE", 5)
    text = divided_in(tmp_path / "out", corpus)
    assert by_split(text) == expected
    assert list(TrainText([text])) == expected["train"]
    assert TrainText([text]).letters == sum(len(d.replace("\n", "")) for d in expected["train"])
    assert text.facts["documents"] == sum(map(len, expected.values()))
    assert text.facts["bytes"] == sum(len(d.encode()) for s in expected.values() for d in s)
    everything = list(text.documents())
    for first in (1, len(everything) // 2, len(everything)):
        assert list(text.documents(first)) == everything[first:]


def test_any_number_of_processes_writes_the_same(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(splits, "FOR_ONE_PROCESS", 1)
    for seed in range(5):
        write(tmp_path / "text" / f"{seed}.txt", long(20, seed))
    corpus = Text(path=str(tmp_path / "text"))
    alone = divided_in(tmp_path / "1", corpus)
    together = divided_in(tmp_path / "3", corpus, processes=3)
    assert alone.facts == together.facts
    for file in (tmp_path / "1").iterdir():
        assert file.read_bytes() == (tmp_path / "3" / file.name).read_bytes()


@pytest.mark.parametrize("bucket", [1 << 21, 10])
def test_equal_documents_are_kept_once(bucket: int, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(splits, "_BUCKET", bucket)
    train, valid, test = long(60), long(6, 1), long(5, 2)
    write(tmp_path / "text" / "train.txt", [*train, *train[:9], valid[2], test[1]])
    write(tmp_path / "text" / "valid.txt", [*valid, valid[0], test[3]])
    write(tmp_path / "text" / "test.txt", [*test, test[0]])
    path = str(tmp_path / "text")
    text = divided_in(tmp_path / "out", Text(path=path, deduplicate=True))
    found = by_split(text)
    assert text.facts["dropped"] == 9 + 1 + 1 + 1 + 1 + 1
    assert [len(found[split]) - 1 for split in found] == [60, 6, 5]  # and the piece at the end
    everything = [document for documents in found.values() for document in documents]
    assert len(set(everything)) == len(everything)
    assert valid[2] in found["valid"]
    assert valid[2] not in found["train"]
    assert Text(path=path).fingerprint() != Text(path=path, deduplicate=True).fingerprint()


def test_a_split_of_duplicates_alone_is_refused(tmp_path: Path) -> None:
    for name in ("train", "valid", "test"):
        write(tmp_path / "text" / f"{name}.txt", long(30))
    with pytest.raises(UserError, match="leaves a split empty"):
        divided_in(tmp_path / "out", Text(path=str(tmp_path / "text"), deduplicate=True))


def test_an_interrupted_division_reads_only_missing_parts(tmp_path: Path, monkeypatch) -> None:
    for seed in range(4):
        write(tmp_path / "text" / f"{seed}.txt", long(20, seed))
    corpus = Text(path=str(tmp_path / "text"))
    whole = divided_in(tmp_path / "whole", corpus)
    write_notes, parts = splits.write_notes, []

    def stopped(work):
        parts.append(work[0].name)
        if len(parts) == 3:
            raise KeyboardInterrupt
        return write_notes(work)

    monkeypatch.setattr(splits, "write_notes", stopped)
    with pytest.raises(KeyboardInterrupt):
        divided_in(tmp_path / "out", corpus)
    assert divided_in(tmp_path / "out", corpus).facts == whole.facts
    assert parts[2:] == ["train-000002.notes", "train-000002.notes", "train-000003.notes"]


@pytest.mark.parametrize("count", [19, 41])
def test_text_that_changes_meanwhile_is_told(count: int, tmp_path: Path) -> None:
    write(tmp_path / "a.txt", long(40))
    text = divided_in(tmp_path / "out", Text(path=str(tmp_path / "a.txt")))
    write(tmp_path / "a.txt", long(count))
    with pytest.raises(UserError, match="the text changed while it was prepared; start again"):
        list(text.documents())


def test_compressed_files_are_read(tmp_path: Path) -> None:
    import pyarrow

    texts = long(40)
    rows = [json.dumps({"text": text, "more": 1}) + "\n" for text in texts]
    raw = "".join(rows).encode()
    halves = raw[: len(raw) // 2], raw[len(raw) // 2 :]
    zstd = pyarrow.Codec("zstd")
    (tmp_path / "a.jsonl").write_bytes(raw)
    (tmp_path / "a.jsonl.gz").write_bytes(b"".join(map(gzip.compress, halves)))
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(raw))
    (tmp_path / "a.jsonl.zst").write_bytes(
        b"".join(zstd.compress(half, asbytes=True) for half in halves)
    )
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress("\n\n".join(texts).encode()))
    found = [splits_of(Text(path=str(file))) for file in sorted(tmp_path.iterdir())]
    assert len(found) == 5
    assert all(splits == found[0] for splits in found)
    assert sorted(d for documents in found[0].values() for d in documents) == sorted(texts)
    assert len(texts_of(Text(path=str(tmp_path)))) == 5 * 40


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
@pytest.mark.parametrize("damage", ["cut", "flipped"])
def test_damaged_compressed_files_are_named(suffix: str, damage: str, tmp_path: Path) -> None:
    import pyarrow

    raw = "\n\n".join(long(40)).encode()
    packed = gzip.compress(raw)
    if suffix == ".zst":
        packed = pyarrow.Codec("zstd").compress(raw, asbytes=True)
    middle = len(packed) // 2
    flipped = packed[:middle] + bytes(255 - b for b in packed[middle : middle + 40])
    file = tmp_path / f"a.txt{suffix}"
    file.write_bytes(packed[:-9] if damage == "cut" else flipped + packed[middle + 40 :])
    with pytest.raises(UserError, match=rf"txt{suffix} is not a whole compressed|is not UTF-8"):
        splits_of(Text(path=str(file)))


def test_half_a_character_in_json_is_replaced(tmp_path: Path) -> None:
    texts = [f"{text} \U0001f600" for text in long(30)]
    rows = [json.dumps({"text": text}) for text in texts]
    rows[3] = rows[3].replace("\\ude00", "")
    (tmp_path / "a.jsonl").write_text("\n".join(rows))
    found = texts_of(Text(path=str(tmp_path)))
    assert sum(document.endswith(" ?") for document in found) == 1
    assert sum(document.endswith(" \U0001f600") for document in found) == 29


def test_line_separators_inside_json_do_not_end_a_row(tmp_path: Path) -> None:
    texts = [f"{text}\u2028{text}\x85" for text in long(30)]
    file = tmp_path / "a.jsonl"
    file.write_text("".join(json.dumps({"text": t}, ensure_ascii=False) + "\n" for t in texts))
    assert texts_of(Text(path=str(file))) == sorted(text.strip() for text in texts)


def test_shares_are_about_90_5_5_by_text() -> None:
    documents = sentences(2000)
    splits = divide(documents)
    total = sum(map(len, documents))
    size = {split: sum(map(len, texts)) / total for split, texts in splits.items()}
    assert size["valid"] == pytest.approx(0.05, abs=0.002)
    assert size["test"] == pytest.approx(0.05, abs=0.002)
    assert sorted(t for texts in splits.values() for t in texts) == sorted(documents)


def test_division_depends_on_texts_and_not_on_their_order() -> None:
    documents = sentences(100)
    first, second = divide(documents), divide(documents[::-1])
    assert {s: set(t) for s, t in first.items()} == {s: set(t) for s, t in second.items()}


def test_a_long_document_does_not_overfill_a_small_split() -> None:
    for seed in range(20):
        documents = [*sentences(60, seed), "long " * 4000]
        splits = divide(documents)
        total = sum(map(len, documents))
        for split in ("valid", "test"):
            assert 0 < sum(map(len, splits[split])) < 0.08 * total


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_few_documents_still_fill_every_split(count: int) -> None:
    documents = sentences(count)
    splits = divide(documents)
    assert all(splits.values())
    words = sorted(w for texts in splits.values() for text in texts for w in text.split())
    assert words == sorted(w for text in documents for w in text.split())


def test_hardly_any_text_is_refused() -> None:
    with pytest.raises(UserError, match="too few to divide"):
        divide(["word"])


def test_missing_splits_are_taken_from_train_or_from_valid() -> None:
    documents = sentences(60)
    only_test_missing = divided({"train": [documents], "valid": [["v"]]}, "here")
    assert only_test_missing["valid"] == ["v"]
    assert set(only_test_missing["train"]) | set(only_test_missing["test"]) == set(documents)
    no_train = divided({"valid": [documents], "test": [["t"]]}, "here")
    assert no_train["test"] == ["t"]
    assert len(no_train["train"]) > 10 * len(no_train["valid"]) > 0
    with pytest.raises(UserError, match="here holds no text"):
        divided({"train": [[]]}, "here")


def test_shares_of_what_is_there_add_up() -> None:
    assert shares_of(["train"]) == pytest.approx({"train": 1.0})
    assert shares_of(["valid", "test"]) == pytest.approx({"valid": 0.95, "test": 0.05})
    assert sum(shares_of(["train", "valid", "test"]).values()) == pytest.approx(1.0)


def test_bound_cuts_the_last_document_at_a_blank() -> None:
    assert [*bounded(["año nuevo", "vida nueva"], None)] == ["año nuevo", "vida nueva"]
    assert [*bounded(["año nuevo", "vida nueva"], 17)] == ["año nuevo", "vida"]
    assert [*bounded(["ñandú"], 3)] == ["ña"]
    assert [*bounded(["a b"], 0)] == []


def test_fingerprint_of_a_large_file_looks_at_both_ends(tmp_path: Path) -> None:
    file = tmp_path / "large"
    content = bytearray(200_000)
    seen = set()
    for place in (0, 199_999):
        content[place] = 1
        file.write_bytes(content)
        seen |= {file_fingerprint(file, whole=1000), file_fingerprint(file)}
    assert len(seen) == 4
