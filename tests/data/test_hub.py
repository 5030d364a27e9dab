"""What is fetched: from the hub, with a hub of our own, and RedPajama-V2's lists and shards."""

from __future__ import annotations

import gzip
import io
import json
import shutil
from pathlib import Path
from unittest.mock import MagicMock

import datasets
import huggingface_hub
import pytest
from huggingface_hub.errors import GatedRepoError

from chimera.data.corpus import redpajama
from chimera.data.corpus.redpajama import RedPajama
from chimera.data.corpus.text import Text
from chimera.data.corpus.wikitext import HUB, WikiText2
from chimera.data.encode.prepare import prepare
from chimera.data.source import hub
from chimera.errors import UserError
from tests.data.kit import bert_vocabulary, sentences, small_piece, splits_of, texts_of
from tests.data.test_splits import long


def rows(*texts: str, column: str = "text") -> datasets.Dataset:
    return datasets.Dataset.from_dict({column: list(texts)})


def test_wikitext_from_the_hub(monkeypatch) -> None:
    asked = []

    def load_dataset(*arguments):
        asked.append(arguments)
        return {
            "train": rows("", " = A = \n", "", " Text of a . \n", " = B = \n", " Text of b . \n"),
            "validation": rows(" = V = \n", " Text of v . \n"),
            "test": rows(" = T = \n", " Text of t . \n"),
        }

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    splits = splits_of(WikiText2())
    assert asked == [HUB]
    assert splits == {
        "train": ["= A =\nText of a .", "= B =\nText of b ."],
        "valid": ["= V =\nText of v ."],
        "test": ["= T =\nText of t ."],
    }


def test_any_data_set_of_the_hub(monkeypatch) -> None:
    texts = [text * 60 for text in sentences(40)]
    monkeypatch.setattr(
        datasets, "load_dataset", lambda name, config: {"train": rows(*texts, column="body")}
    )
    assert texts_of(Text(path="owner/name", field="body", config="es")) == sorted(texts)
    with pytest.raises(
        UserError,
        match=r"owner/name \(train\): row 0 has no text in data.field=text; its fields are body",
    ):
        splits_of(Text(path="owner/name"))


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (ConnectionError("Couldn't reach the Hub"), "fetch it once while connected"),
        (datasets.exceptions.DatasetNotFoundError("no such"), "check the name"),
        (ValueError("Config name is missing.\nPick one of a, b"), "Pick one of a, b"),
    ],
)
def test_what_the_hub_raises_becomes_one_line(raised, said, monkeypatch) -> None:
    def load_dataset(*_):
        raise raised

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    for corpus in (WikiText2(), Text(path="owner/name")):
        with pytest.raises(UserError, match=said) as caught:
            splits_of(corpus)
        assert "\n" not in str(caught.value)


def test_offline_and_never_fetched_is_told_before_anything(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HOME", str(tmp_path))
    monkeypatch.setattr(hub, "reachable", lambda: False)
    with pytest.raises(UserError, match=r"load_dataset\('Salesforce/wikitext', 'wikitext-2-raw"):
        WikiText2().check()
    with pytest.raises(UserError, match="the data set owner/name is not on this machine"):
        Text(path="owner/name").check()
    (tmp_path / "datasets--owner--name").mkdir()
    Text(path="owner/name").check()


def test_vocabulary_files_come_from_the_cache_or_the_hub(monkeypatch, tmp_path: Path) -> None:
    file = str(bert_vocabulary(tmp_path) / "vocab.txt")
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *_: None)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda *_: file)
    monkeypatch.setattr(hub, "reachable", lambda: False)
    with pytest.raises(UserError, match=r"give tokenizer.path=<a folder that holds vocab.txt>"):
        hub.find_file("owner/name", "vocab.txt", "tokenizer.path")
    monkeypatch.setattr(hub, "reachable", lambda: True)
    assert hub.find_file("owner/name", "vocab.txt", "tokenizer.path") == Path(file)
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *_: file)
    monkeypatch.setattr(hub, "reachable", lambda: pytest.fail("no need to ask"))
    assert hub.find_file("owner/name", "vocab.txt", "tokenizer.path") == Path(file)


def test_offline_mode_counts_as_unreachable(monkeypatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert not hub.reachable()
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub, "getproxies", dict)
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    assert not hub.reachable()


def test_ids() -> None:
    assert all(map(hub.is_id, ("owner/name", "Salesforce/wikitext")))
    assert not any(map(hub.is_id, ("name", "./name", "a/b/c", "/a/b", "a/b c", "../b")))


class Streams:
    """A hub whose stream breaks off at some rows, as often as is told."""

    def __init__(self, texts: list[str], breaks: tuple[int, ...] = ()) -> None:
        self.texts, self.breaks, self.read = texts, list(breaks), 0

    def __call__(self, name, config, split, streaming):
        assert (name, config, split, streaming) == ("owner/name", "es", "train", True)
        return datasets.IterableDataset.from_generator(self.rows)

    def rows(self):
        for text in self.texts:
            self.read += 1
            if self.breaks and self.read == self.breaks[0]:
                del self.breaks[0]
                raise ConnectionError("reset by peer")
            yield {"body": text, "url": "u"}


def stream_of(folder: Path, **change) -> Text:
    given = {"path": "owner/name", "config": "es", "field": "body", "stream": True}
    return Text(**{**given, "max_bytes": 250_000, "cache_dir": str(folder), **change})


def served(monkeypatch, *breaks: int) -> list[str]:
    """The texts of a stream that breaks off at these rows."""
    texts = [text * 60 for text in sentences(40)]
    monkeypatch.setattr(hub, "_FILE_BYTES", 20_000)
    monkeypatch.setattr(datasets, "load_dataset", Streams(texts, breaks))
    return texts


def test_a_stream_is_kept_up_to_its_bound(monkeypatch, tmp_path: Path) -> None:
    texts = served(monkeypatch)
    found = texts_of(stream_of(tmp_path))
    assert found == sorted(texts[: len(found)])
    assert 250_000 <= sum(map(len, found)) < 250_000 + max(map(len, texts))
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: pytest.fail("read again"))
    monkeypatch.setattr(hub, "reachable", lambda: pytest.fail("no need to ask"))
    stream_of(tmp_path).check()
    assert texts_of(stream_of(tmp_path)) == found


def test_a_stream_that_breaks_off_goes_on(monkeypatch, tmp_path: Path) -> None:
    texts = served(monkeypatch, 5, 14)
    corpus = stream_of(tmp_path, max_bytes=10**9)
    for _ in range(2):
        with pytest.raises(UserError, match="owner/name is not on this machine"):
            corpus.sources()
    assert texts_of(corpus) == sorted(texts)


def test_what_a_stream_needs_is_told(monkeypatch, tmp_path: Path) -> None:
    for change in ({"max_bytes": None}, {"path": str(tmp_path)}):
        with pytest.raises(UserError, match=r"data.stream=true needs data.path=<owner/name"):
            stream_of(tmp_path, **change).check()
    monkeypatch.setattr(datasets, "load_dataset", Streams(["text"]))
    with pytest.raises(
        UserError, match=r"owner/name has no text in data.field=text; its fields are body, url"
    ):
        stream_of(tmp_path, field="text").sources()


def test_terms_to_accept_are_told(monkeypatch, tmp_path: Path) -> None:
    def load_dataset(*_, **__):
        error = GatedRepoError("not for you", response=MagicMock())
        raise datasets.exceptions.DatasetNotFoundError("Dataset 'x' is not for all") from error

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(UserError, match=r"accept them on huggingface.co/.* and set HF_TOKEN"):
        stream_of(tmp_path).sources()


def test_wikitext_103_is_another_configuration(monkeypatch) -> None:
    asked = []
    monkeypatch.setattr(hub, "check_dataset", lambda *arguments: asked.append(arguments[:2]))
    WikiText2(config="wikitext-103-raw-v1").check()
    WikiText2().check()
    assert asked == [(HUB[0], "wikitext-103-raw-v1"), HUB]
    assert WikiText2().fingerprint() != WikiText2(config="wikitext-103-raw-v1").fingerprint()


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
