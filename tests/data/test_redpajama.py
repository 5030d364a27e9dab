"""RedPajama-V2 from its lists and compressed JSON lines, on shards of the same form."""

import gzip
import io
import json
import shutil
from pathlib import Path

import pytest

from chimera.data.corpus import redpajama
from chimera.data.corpus.redpajama import RedPajama
from chimera.data.encode.prepare import prepare
from chimera.errors import UserError
from tests.data.kit import sentences, small_piece, splits_of, texts_of
from tests.data.test_splits import long

ENTRIES = [f"{number:04d}/es_{part}" for number in range(3) for part in ("head", "middle")]


def collection(folder: Path, snapshots: tuple[str, ...] = ("2023-06",)) -> list[list[str]]:
    """Lists and shards as on the server; returns the texts of each shard."""
    shards = []
    (folder / "listings").mkdir(parents=True)
    for snapshot in snapshots:
        entries = [f"{snapshot}/{entry}" for entry in ENTRIES]
        (folder / "listings" / f"es-{snapshot}-head_middle.txt").write_text("\n".join(entries))
        for entry in entries:
            texts = long(12, seed=len(shards), times=40)
            file = folder / "documents" / f"{entry}.json.gz"
            file.parent.mkdir(parents=True, exist_ok=True)
            rows = [
                {"url": f"https://example.org/{n}", "raw_content": f"{text}\n{text[:50].strip()}"}
                for n, text in enumerate(texts)
            ]
            file.write_bytes(gzip.compress("".join(json.dumps(r) + "\n" for r in rows).encode()))
            shards.append([row["raw_content"] for row in rows])
    return shards


def corpus(folder: Path, **change) -> RedPajama:
    url = (folder / "server").as_uri()
    return RedPajama(**{"url": url, "files": 4, "cache_dir": str(folder / "cache"), **change})


def test_the_first_shards_of_each_list_are_fetched_once(tmp_path: Path, monkeypatch) -> None:
    shards = collection(tmp_path / "server", ("2023-06", "2022-49"))
    found = corpus(tmp_path, snapshots=["2022-49", "2023-06"], files=2)
    found.check()
    assert texts_of(found) == sorted(text for i in (6, 7, 0, 1) for text in shards[i])
    shutil.rmtree(tmp_path / "server")
    monkeypatch.setattr(redpajama, "_fetch", lambda *_: pytest.fail("fetched again"))
    found.check()
    assert len(texts_of(found)) == 4 * 12


@pytest.mark.slow
def test_tokens_are_those_of_the_same_files_in_a_folder(tmp_path: Path) -> None:
    collection(tmp_path / "server")
    fetched = prepare(corpus(tmp_path, files=None), small_piece())
    local = prepare(corpus(tmp_path, path=str(tmp_path / "server" / "documents")), small_piece())
    assert fetched.tokenizer.sha256 == local.tokenizer.sha256
    for split in ("train", "valid", "test"):
        assert fetched.splits[split].ids.tolist() == local.splits[split].ids.tolist()
    assert fetched.report["corpus_sha256"] != local.report["corpus_sha256"]


@pytest.mark.parametrize(
    "change", [{"files": 3}, {"snapshots": ["2022-49"]}, {"language": "it"}, {"max_bytes": 9}]
)
def test_the_fingerprint_follows_the_choice(change, tmp_path: Path) -> None:
    assert corpus(tmp_path).fingerprint() != corpus(tmp_path, **change).fingerprint()
    assert corpus(tmp_path).fingerprint() == corpus(tmp_path, url="http://mirror").fingerprint()


def test_what_is_not_there_is_told_at_once(tmp_path: Path) -> None:
    collection(tmp_path / "server")
    with pytest.raises(UserError, match=r"es-1999-01-head_middle.txt cannot be fetched"):
        corpus(tmp_path, snapshots=["1999-01"]).check()
    (tmp_path / "server/documents/2023-06/0000/es_middle.json.gz").unlink()
    with pytest.raises(UserError, match=r"0000/es_middle.json.gz cannot be fetched"):
        splits_of(corpus(tmp_path))


def test_a_file_that_arrives_in_part_is_fetched_again(tmp_path: Path, monkeypatch) -> None:
    whole = "\n".join(sentences(3)).encode()
    answers = [whole[:7], whole]

    class Answer(io.BytesIO):
        headers = {"Content-Length": str(len(whole))}  # noqa: RUF012

    monkeypatch.setattr(redpajama, "_PAUSE", 0.0)
    monkeypatch.setattr(
        redpajama.urllib.request, "urlopen", lambda *_, **__: Answer(answers.pop(0))
    )
    assert redpajama.fetched(tmp_path, "http://server/a.txt").read_bytes() == whole
    assert not answers
