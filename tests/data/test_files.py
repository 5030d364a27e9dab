"""`data=text` and `data=wikitext2` on files."""

import gzip
import io
import json
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest

from chimera.data.corpus.text import Text, gather
from chimera.data.corpus.wikitext import WikiText2
from chimera.data.source import files
from chimera.data.source.files import paragraphs, read_lines, split_of
from chimera.errors import UserError
from tests.data.kit import sentences, splits_of, texts_of


def article(name: str) -> str:
    return f" = {name} = \n \n {name} is a thing . \n = = Part = = \n It has one part . \n"


def lines(count: int, seed: int = 0) -> str:
    return "\n".join(sentences(count, seed)) + "\n"


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("train.txt", "train"),
        ("wiki.valid.tokens", "valid"),
        ("literature_dev.jsonl", "valid"),
        ("test-00000-of-00001.parquet", "test"),
        ("training.txt", None),
        ("latest.txt", None),
        ("Valid/train.txt", "valid"),
        ("test/a/b.txt", "test"),
        ("testing/b.txt", None),
    ],
)
def test_splits_by_name(name: str, split: str | None) -> None:
    assert split_of(Path(name)) == split


@pytest.mark.parametrize(
    ("text", "units"),
    [
        ("\ufeffa\nb\n \n\nc\n", ["a\nb", "c"]),
        ("a\nb\n", ["a", "b"]),
        ("\n\n a\r\nb \n\n\n", [" a", "b"]),
        ("a\rb\r\rc", ["a\nb", "c"]),
        ("a\x0bb\u2028\x85c\x0b\nd", ["a\x0bb\u2028\x85c", "d"]),
        ("def f(x):\n    if x:\n\treturn\n \n\n  y\n", ["def f(x):\n    if x:\n\treturn", "  y"]),
        ("\n \n", []),
        ("", []),
    ],
)
def test_blank_lines_separate_else_lines_do(text: str, units: list[str], tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(text.encode())
    assert list(paragraphs(tmp_path / "a.txt")) == units


def test_short_units_are_joined() -> None:
    assert list(gather(["a" * 3, "b" * 3, "c" * 9, "d"], shortest=6)) == ["aaa\nbbb", "c" * 9, "d"]


def test_a_folder_with_named_splits(tmp_path: Path) -> None:
    for name, seed in (("a_train.txt", 0), ("a_valid.txt", 1), ("more.txt", 2)):
        (tmp_path / name).write_text(lines(80, seed))
    splits = splits_of(Text(path=str(tmp_path)))
    assert "\n".join(splits["valid"]) + "\n" == lines(80, 1)
    rest = sorted("\n".join(splits["train"] + splits["test"]).split("\n"))
    assert rest == sorted((lines(80, 0) + lines(80, 2)).splitlines())
    assert splits["test"]


def test_folders_name_splits_and_links_are_followed_and_hidden_places_are_not(
    tmp_path: Path,
) -> None:
    for number, name in enumerate(("train/a", "valid/a", "test/a", ".git/a", "train/._a")):
        (tmp_path / "text" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "text" / f"{name}.txt").write_text(lines(60, number))
    (tmp_path / "real").mkdir()
    (tmp_path / "real/b.txt").write_text(lines(60, 9))
    (tmp_path / "text/train/linked").symlink_to(tmp_path / "real")
    (tmp_path / "text/train/again").symlink_to(tmp_path / "text")
    for path in (tmp_path / "text", f"{tmp_path}/text/*/*.txt"):
        found = {
            split: "\n".join(texts) for split, texts in splits_of(Text(path=str(path))).items()
        }
        for number, split in enumerate(("train", "valid", "test")):
            assert lines(60, number).strip() in found[split]
        assert lines(60, 3).strip() not in str(found)
        assert (lines(60, 9).strip() in found["train"]) == (path == tmp_path / "text")


def test_a_folder_inside_that_cannot_be_read_is_told(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "closed").mkdir()
    (tmp_path / "a.txt").write_text(lines(60))
    scan = os.scandir

    def scandir(place):
        if Path(place).name == "closed":
            raise PermissionError(13, "Permission denied", str(place))
        return scan(place)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(UserError, match=r"closed cannot be read \(Permission denied\)"):
        Text(path=str(tmp_path)).check()


def test_a_file_with_two_names_is_read_once_and_no_file_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(lines(60))
    (tmp_path / "b.txt").symlink_to(tmp_path / "a.txt")
    for path in (tmp_path, tmp_path / "*.txt"):
        corpus = Text(path=str(path))
        assert splits_of(corpus) == splits_of(Text(path=str(tmp_path / "a.txt")))
        (tmp_path / "c.txt").symlink_to(tmp_path / "gone.txt")
        with pytest.raises(UserError, match=r"c\.txt is a link to nothing"):
            corpus.check()
        (tmp_path / "c.txt").unlink()


def test_files_of_their_own_for_splits(tmp_path: Path) -> None:
    for seed, name in enumerate(("x.txt", "v.txt", "t.txt")):
        (tmp_path / name).write_text(lines(60, seed))
    corpus = Text(
        path=str(tmp_path), valid_path=str(tmp_path / "v.txt"), test_path=str(tmp_path / "t*")
    )
    splits = splits_of(corpus)
    for seed, split in enumerate(("train", "valid", "test")):
        assert "\n".join(splits[split]) + "\n" == lines(60, seed)


def test_a_single_file_is_divided_whatever_its_name(tmp_path: Path) -> None:
    (tmp_path / "test.txt").write_text(lines(300))
    splits = splits_of(Text(path=str(tmp_path / "test.txt")))
    assert len(splits["train"]) > len(splits["valid"]) > 0 < len(splits["test"])


def test_json_lines_and_parquet(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    texts = [text * 60 for text in sentences(30)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"body": t}) + "\n" for t in texts))
    pyarrow.parquet.write_table(pyarrow.table({"body": texts}), tmp_path / "a.parquet")
    files = [str(tmp_path / name) for name in ("a.jsonl", "a.parquet")]
    one, other = (Text(path=file, field="body") for file in files)
    assert splits_of(one) == splits_of(other)
    assert texts_of(one) == sorted(texts)
    for file in files:
        with pytest.raises(UserError, match=r"data.field=text; its fields are body"):
            splits_of(Text(path=file))


ROWS = [{"text": f"  Row {i}, of 99.", "n": i} for i in range(99)]
JSON_LINES = "".join(json.dumps(row) + "\n" for row in ROWS)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.JSONL", JSON_LINES),
        ("a.ndjson", "\ufeff" + JSON_LINES),
        ("a.json", JSON_LINES),
        ("a.json", "\n" + json.dumps(ROWS, indent=1)),
        ("a.json.GZ", JSON_LINES),
        ("a.csv", "n,text\r\n" + "".join(f'{r["n"]},"{r["text"]}"\r\n' for r in ROWS)),
        ("a.tsv", "n\ttext\n" + "".join(f"{r['n']}\t{r['text']}\n" for r in ROWS)),
        ("a.TXT", "\n".join(str(row["text"]) for row in ROWS)),
    ],
)
def test_suffix_and_contents_give_the_format(name: str, content: str, tmp_path: Path) -> None:
    raw = content.encode()
    (tmp_path / name).write_bytes(gzip.compress(raw) if name.endswith("GZ") else raw)
    for path in (tmp_path, tmp_path / name):
        corpus = Text(path=str(path))
        corpus.check()
        texts = "\n".join(texts_of(corpus)).split("\n")
        assert sorted(texts) == sorted(str(row["text"]) for row in ROWS)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("latin.txt", "el año\n".encode("latin1"), r"latin.txt: byte 4 \(0xf1\) is not UTF-8"),
        ("bad.jsonl", b'{"text": "a"}\nno json\n', "line 2 is not JSON"),
        ("bad.parquet", b"no parquet", "is not Parquet"),
        ("a.xml", b"<p>text</p>", r"format of .*a.xml is not known; files end in .txt, .*.csv"),
        (
            "a.jsonl",
            b'{"text": "a"}\n{"text": null}',
            r"a.jsonl: line 2 has no text in data.field=text; it holds None",
        ),
        ("a.json", b'[{"text": "a"}, {}]', r"a.json: record 2 has no text in data.field=text"),
        ("a.jsonl", b'{"text": 5}', r"a.jsonl: line 1 has no text in data.field=text; it holds 5"),
        ("a.jsonl", b'{"text": 1' + b"1" * 5000 + b"}", r"a.jsonl: line 1 is not JSON"),
        ("a.jsonl", b'{"text": "a"}\n' + b"[" * 200_000, r"a.jsonl: line 2 is not JSON"),
        ("a.csv", b'text\n"a"\n"b\n', r"a.csv: line 3 is not CSV"),
        ("a.csv", b"text\na\nthe weather, cold\n", r"a.csv: line 3 has 2 fields, and the table 1"),
        ("a.tsv", b"id\ttext\n1\ta\tb\n", r"a.tsv: line 2 has 3 fields, and the table 2"),
        ("a.csv", b"text,text\na,b\n", r"a.csv: line 1 names several columns text"),
        ("a.parquet", b"PAR1" + bytes(range(99)) + b"PAR1", r"a.parquet is not Parquet"),
        ("a.txt.zst", b"no zst", r"a.txt.zst is not a whole compressed file"),
    ],
)
def test_what_cannot_be_read_is_named(name: str, content: bytes, says: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=says):
        splits_of(Text(path=str(tmp_path / name)))


def test_code_and_marked_text_are_read_where_the_path_names_them(tmp_path: Path, caplog) -> None:
    caplog.set_level("INFO", logger="chimera")
    (tmp_path / "README.md").write_text("# About the data\n" * 99)
    (tmp_path / "a.py").write_text("def f():\n    return 1\n" * 99)
    for path, has in (("a.py", "    return 1"), ("**/*.md", "# About")):
        corpus = Text(path=str(tmp_path / path))
        corpus.check()
        assert has in str(splits_of(corpus))
    for path, says in (("", "holds no file that is read"), ("*", "README.md is not known")):
        with pytest.raises(UserError, match=rf"{says}.*ends in its suffix \(.md, "):
            Text(path=str(tmp_path / path)).check()
    (tmp_path / "a.txt").write_text(lines(60))
    corpus = Text(path=str(tmp_path))
    corpus.check()
    assert "About" not in str(splits_of(corpus))
    assert "are left out: 1 of .md, 1 of .py" in caplog.text


@pytest.mark.parametrize("error", [MemoryError("too little"), ImportError("no library")])
def test_what_is_no_fault_of_the_data_passes(tmp_path: Path, monkeypatch, error: Exception) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(files.json, "loads", fail)
    (tmp_path / "a.jsonl").write_text(JSON_LINES)
    with pytest.raises(type(error)):
        list(files.json_rows(tmp_path / "a.jsonl"))


def test_arrays_whose_header_claims_more_than_there_is_are_damaged(tmp_path: Path) -> None:
    file = tmp_path / "a.npz"
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f8", "fortran_order": False, "shape": (1 << 43,)}
    )
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("ids.npy", header.getvalue())
    with pytest.raises(UserError, match=r"a.npz is damaged"):
        files.read_arrays(file, "ids")


def test_one_line_may_not_fill_the_memory(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(files, "_LONGEST", 1 << 16)
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"short\n" + b"a " * (1 << 20)))
    with pytest.raises(UserError, match=r"a.txt.gz: line 2 is longer than 0 MiB"):
        list(read_lines(tmp_path / "a.txt.gz"))
    assert list(read_lines(tmp_path / "a.txt.gz", 100)) == ["short\n"]
    (tmp_path / "a.txt").write_text("ñ" * 50)
    assert list(read_lines(tmp_path / "a.txt", 9)) == ["ñ" * 4]  # a bound cuts no character
    os.mkfifo(tmp_path / "pipe.txt")
    with pytest.raises(UserError, match=r"pipe.txt is no regular file"):
        list(read_lines(tmp_path / "pipe.txt"))


def test_a_glob_over_links_to_its_folder_ends(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(lines(60))
    (tmp_path / ".hidden.txt").write_text("hidden")
    for name in ("x", "y"):
        (tmp_path / name).symlink_to(tmp_path)
    assert "hidden" not in str(splits_of(Text(path=f"{tmp_path}/**/*.txt")))


def test_bounded_reading_takes_the_same_part_of_each_file(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(lines(400, 0))
    (tmp_path / "b.txt").write_text(lines(400, 1))
    text = "\n".join(texts_of(Text(path=str(tmp_path), max_bytes=20_000)))
    assert 17_000 < len(text.encode()) <= 20_000
    first_lines = [lines(1, seed).strip() for seed in (0, 1)]
    assert all(line in text for line in first_lines)


@pytest.mark.parametrize(
    ("kind", "keys", "said"),
    [
        (Text, {}, "needs data.path=<a file"),
        (Text, {"path": "nowhere.txt"}, "data.path=nowhere.txt does not exist"),
        (Text, {"path": "no/*.txt"}, "does not exist"),
        (Text, {"path": ".", "valid_path": "nowhere"}, "data.valid_path=nowhere does not exist"),
        (Text, {"path": "empty"}, r"holds no file that is read \(.txt, .*.jsonl, .*.parquet"),
        (WikiText2, {"path": "empty"}, "no train, valid or test file"),
        (WikiText2, {"path": "nowhere"}, "is no folder"),
    ],
)
def test_missing_paths_are_told_at_once(kind, keys, said, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=said):
        kind(**keys).check()


def test_a_split_without_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(lines(60))
    (tmp_path / "valid.txt").write_text("\n \n")
    with pytest.raises(UserError, match="has a valid split without text"):
        splits_of(Text(path=str(tmp_path)))


def test_fingerprint_follows_the_contents(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("one")
    corpus = Text(path=str(file))
    before = corpus.fingerprint()
    assert Text(path=str(tmp_path)).fingerprint() == before
    file.write_text("two")
    assert corpus.fingerprint() != before


ARTICLES = "\n".join(article(f"Article {chr(65 + i)}") for i in range(24))


def test_wikitext_documents_are_articles(tmp_path: Path) -> None:
    (tmp_path / "wiki.train.raw").write_text(ARTICLES)
    (tmp_path / "wiki.valid.raw").write_text(article("Valid") + article("Other"))
    (tmp_path / "wiki.test.raw").write_text(article("Test"))
    corpus = WikiText2(path=str(tmp_path))
    corpus.check()
    splits = splits_of(corpus)
    assert len(splits["train"]) == 24
    assert splits["valid"] == [
        f"= {name} =\n{name} is a thing .\n= = Part = =\nIt has one part ."
        for name in ("Valid", "Other")
    ]


def test_wikitext_reads_one_file_of_text_for_each_split(tmp_path: Path) -> None:
    """No other format as text, no file of an editor, and none is passed over."""
    (tmp_path / "wiki.train.tokens").write_text(article("A") * 30)
    expected = splits_of(WikiText2(path=str(tmp_path)))
    (tmp_path / ".wiki.train.tokens").write_text("x")
    (tmp_path / "test.jsonl").write_text('{"text": "a"}\n')
    assert splits_of(WikiText2(path=str(tmp_path))) == expected
    (tmp_path / "train.txt").write_text(article("B"))
    with pytest.raises(UserError, match=r"wiki\.train\.tokens is a second file of train"):
        WikiText2(path=str(tmp_path)).check()


def test_rows_are_joined_as_those_of_hugging_face(tmp_path: Path) -> None:
    """A row is a line with its end, or nothing for an empty line; a blank line is between two."""
    for split in ("train", "valid", "test"):
        (tmp_path / f"wiki.{split}.raw").write_text(f" \n = {split} = \n \n It is a thing . \n")
    corpus = WikiText2(path=str(tmp_path), join="rows")
    corpus.check()
    assert splits_of(corpus)["valid"] == ["\n\n = valid = \n\n\n\n\n It is a thing . \n"]
    assert corpus.fingerprint() != WikiText2(path=str(tmp_path)).fingerprint()
    (tmp_path / "wiki.valid.raw").unlink()
    with pytest.raises(UserError, match=r"data\.join=rows makes one text.*no file for valid$"):
        corpus.check()


def test_wikitext_without_train_divides_valid(tmp_path: Path) -> None:
    (tmp_path / "valid.txt").write_text(ARTICLES)
    (tmp_path / "test.txt").write_text(article("Test"))
    splits = splits_of(WikiText2(path=str(tmp_path)))
    assert len(splits["train"]) + len(splits["valid"]) == 24
    assert len(splits["test"]) == 1
