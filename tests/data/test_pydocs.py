"""The harvest of docstrings, on a small library of our own; what is kept of one."""

import ast
import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest

from chimera.data.corpus import pydocs
from chimera.data.corpus.prose import is_prose, paragraphs
from chimera.data.corpus.pydocs import PyDocs
from chimera.errors import UserError
from tests.data.kit import splits_of, texts_of

SHARED = "This paragraph stands in two of the modules and is kept only in one."


def module(number: int) -> str:
    words = "\n\n".join(
        f"The part with number {chr(97 + number) * (i + 2)} does what it says in "
        f"the manual of the library."
        for i in range(4)
    )
    return f'"""{words}\n\n{SHARED}"""\nraise SystemExit("never import me")\n'


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "lib"
    (root / "pydoc_data").mkdir(parents=True)
    (root / "tests").mkdir()
    topic = "A topic is a text about the language that is shown by its help function. " * 4
    (root / "pydoc_data" / "topics.py").write_text(f"topics = {{'if': {topic!r}}}\n")
    (root / "tests" / "left_out.py").write_text(module(25))
    (root / "broken.py").write_text('"""{{ template }}"""\ndef {{ name }}():\n')
    for number in range(24):
        (root / f"m{number:02}.py").write_text(module(number))
    monkeypatch.setattr(pydocs, "PACKAGES", {})
    monkeypatch.setattr(pydocs, "standard_library", lambda: root)
    return root


def test_documents_are_modules_without_repeated_paragraphs(library: Path) -> None:
    found = pydocs.harvest()
    assert list(found) == sorted(["pydoc_data/topics.py", *(f"m{n:02}.py" for n in range(24))])
    assert sum(SHARED in text for text in found.values()) == 1
    assert found["m01.py"].count("\n") == 3


def test_a_small_harvest_begins_a_larger_one(library: Path) -> None:
    """So its text is the same whatever is read or cached besides."""
    every = pydocs.harvest(1_000_000)
    assert list(every) == sorted(pydocs.harvest(), key=pydocs._digest)
    assert sum(SHARED in text for text in every.values()) == 1
    for most in (1, 700, 2500):
        few = pydocs.harvest(most)
        assert list(few.items()) == list(every.items())[: len(few)]
        assert most < sum(map(len, few.values())) <= most + max(map(len, every.values()))


def test_splits_are_disjoint_whole_and_repeatable(library: Path, tmp_path: Path) -> None:
    corpus = PyDocs(cache_dir=str(tmp_path / "cache"))
    corpus.check()
    splits = splits_of(corpus)
    everything = [text for split in splits.values() for text in split]
    assert len(set(everything)) == len(everything) == 25
    assert all(splits.values())
    assert splits == splits_of(PyDocs(cache_dir=str(tmp_path / "other")))


def test_harvest_is_cached(library: Path, tmp_path: Path, monkeypatch) -> None:
    corpus = PyDocs(cache_dir=str(tmp_path))
    first = splits_of(corpus)
    monkeypatch.setattr(pydocs, "harvest", lambda enough: pytest.fail("harvested twice"))
    assert splits_of(corpus) == first


def test_bound_takes_documents_from_everywhere(library: Path, tmp_path: Path) -> None:
    text = "\n".join(texts_of(PyDocs(cache_dir=str(tmp_path), max_bytes=2000)))
    assert 1500 < len(text.encode()) <= 2100
    assert "number aa " not in text or "number bb " not in text or "number cc " not in text


def test_fingerprint_follows_versions_and_bound(monkeypatch) -> None:
    before = PyDocs().fingerprint()
    assert PyDocs(batch_size=3).fingerprint() == before
    assert PyDocs(max_bytes=10).fingerprint() != before
    monkeypatch.setattr(pydocs, "_versions", lambda: [("torch", "0")])
    assert PyDocs().fingerprint() != before


def test_without_sources_says_what_else_to_take(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(pydocs, "standard_library", lambda: tmp_path)
    with pytest.raises(UserError, match="data=wikitext2"):
        PyDocs().check()


def test_nested_and_added_docstrings_are_found() -> None:
    tree = ast.parse(
        '"""top"""\nif True:\n    class A:\n        "in class"\n        def f(self):\n'
        '            "in method"\nadd_docstr(f, "added".format(x="y"))\nx = "no docstring"\n'
    )
    found = [n.value for n in pydocs._documentation(tree) if isinstance(n, ast.Constant)]
    assert set(found) == {"top", "in class", "in method", "added", "y"}


def test_every_package_on_the_list_is_a_dependency_here() -> None:
    assert len(pydocs._versions()) == len(set(pydocs.PACKAGES.values()))
    assert json.dumps(pydocs._versions())


def test_documents_of_another_machine(tmp_path: Path) -> None:
    texts = {f"{n}.py": f"Text {n} of another machine, with words enough. " * 9 for n in range(40)}
    file = tmp_path / "documents.json.gz"
    file.write_bytes(gzip.compress(json.dumps(texts).encode()))
    corpus = PyDocs(cache_dir=str(tmp_path / "cache"), documents=str(file))
    corpus.check()
    assert len(texts_of(corpus)) == 40
    plain = tmp_path / "documents.json"
    plain.write_text(json.dumps({**texts, "0.py": "another text " * 20}))
    assert replace(corpus, documents=str(plain)).fingerprint() != corpus.fingerprint()


@pytest.mark.parametrize("content", [b"{", b"[1]", b"{}", b'{"a": 1}', b"\xff"])
def test_a_file_that_holds_no_documents_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "documents.json"
    file.write_bytes(content)
    with pytest.raises(UserError, match=r"documents\.json"):
        splits_of(PyDocs(cache_dir=str(tmp_path), documents=str(file)))
    with pytest.raises(UserError, match="is no file"):
        PyDocs(cache_dir=str(tmp_path), documents=str(tmp_path / "x")).check()
    file.write_text(json.dumps({"a": "cut \ud83d"}))
    assert pydocs.read(file) == {"a": "cut ?"}


EVERYTHING = """
    Return the weights of the layer, in the order in which they were added.

    This is a longer paragraph with ``code``, a :class:`~torch.nn.Module`, a `link
    <https://example.org>`_ and *emphasis*, which all become plain words [1]_.

    .. note::

        A note is prose, too, and so its indented text stays with us.

    .. versionadded:: 1.2
        It is possible to give more than one of them at once.

    .. code-block:: python

        The code in this block could be read as if it were English.

    Here is a list of things that the function does for you::

        This literal block would also read as a sentence of English.

    - It reads the file from the disk, line by line.
    - It writes
      what it has read into a file of the same name.

    Parameters
    ----------
    weights : array_like
        The weights of the layer, as they are when it is called.

    Notes
    -----
    The weights are stored in the order in which they were added.

    +------+-----------------------------------------------+
    | name | What this cell says is a sentence in English. |
    +------+-----------------------------------------------+

    >>> print("This is an example of what the function can do.")
    This is an example of what the function can do.

    Args:
        weights (list): The weights of the layer, as they are when it is called.

    :param weights: The weights of the layer, as they are when it is called.

    Even more of it can be found in the manual of the library.
"""


def test_keeps_running_text_only() -> None:
    assert paragraphs(EVERYTHING) == [
        "Return the weights of the layer, in the order in which they were added.",
        "This is a longer paragraph with code, a Module, a link and emphasis, which all become"
        " plain words.",
        "A note is prose, too, and so its indented text stays with us.",
        "It is possible to give more than one of them at once.",
        "Here is a list of things that the function does for you:",
        "It reads the file from the disk, line by line.",
        "It writes what it has read into a file of the same name.",
        "The weights are stored in the order in which they were added.",
        "Even more of it can be found in the manual of the library.",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "Too short to tell.",
        "this starts in the middle of a sentence that was cut.",
        "This one never comes to an end and so is",
        "Set x = 3 and then it is done with all of them.",
        "See https://example.org for more of what it is about.",
        "Linear Conv2d BatchNorm ReLU MaxPool Flatten Linear Softmax Dropout.",
        "Der Hund lief über die Wiese und kam nicht mehr nach Hause.",
    ],
)
def test_refuses_what_is_no_english_sentence(text: str) -> None:
    assert not is_prose(text)
