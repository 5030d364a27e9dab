"""The hub's code paths, with a hub of our own."""

from pathlib import Path

import datasets
import huggingface_hub
import pytest

from chimera.data.corpus.text import Text
from chimera.data.corpus.wikitext import HUB, WikiText2
from chimera.data.source import hub
from chimera.errors import UserError
from tests.data.kit import bert_vocabulary, sentences


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
    splits = WikiText2().splits()
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
    splits = Text(path="owner/name", field="body", config="es").splits()
    assert sorted(t for split in splits.values() for t in split) == sorted(texts)
    with pytest.raises(UserError, match=r"no column text; data.field takes one of body"):
        Text(path="owner/name").splits()


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
            corpus.splits()
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


@pytest.mark.parametrize("path", ["owner/name", "Salesforce/wikitext"])
def test_ids(path: str) -> None:
    assert hub.is_id(path)


@pytest.mark.parametrize("path", ["name", "./name", "a/b/c", "/a/b", "a/b c", "../b"])
def test_no_ids(path: str) -> None:
    assert not hub.is_id(path)
