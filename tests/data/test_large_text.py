"""Text that may be larger than memory is divided part by part."""

import gzip
import json
from pathlib import Path

import pytest

from chimera.data.corpus.text import Text
from chimera.data.source import splits
from chimera.data.source.splits import DividedText, TrainText, divide_sources
from chimera.errors import UserError
from tests.data.kit import sentences, splits_of


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
    everything = splits_of(Text(path=str(tmp_path)))
    assert sum(map(len, everything.values())) == 5 * 40


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
    found = [d for split in splits_of(Text(path=str(tmp_path))).values() for d in split]
    assert sum(document.endswith(" ?") for document in found) == 1
    assert sum(document.endswith(" \U0001f600") for document in found) == 29


def test_line_separators_inside_json_do_not_end_a_row(tmp_path: Path) -> None:
    texts = [f"{text}\u2028{text}\x85" for text in long(30)]
    file = tmp_path / "a.jsonl"
    file.write_text("".join(json.dumps({"text": t}, ensure_ascii=False) + "\n" for t in texts))
    found = splits_of(Text(path=str(file)))
    assert sorted(d for documents in found.values() for d in documents) == sorted(
        text.strip() for text in texts
    )
