"""The embedded default corpus: English documentation inside installed Python packages (SPEC D3).

It consists of the docstrings of the standard library, of `pydoc_data.topics`, and of packages that
this project always installs. They are read from the sources with `ast`, without importing them, and
cleaned by `chimera.data.corpus.prose`. A document is a module. Of equal paragraphs (compared by
their letters only) one is kept, before the corpus is divided, so no test paragraph is in train. The
corpus needs no network. The text depends on the installed versions, which the fingerprint includes.
Measured (2026-11, Python 3.11): 6.8 MB, 3,671 documents, 20 s of processor time, once.
"""

from __future__ import annotations

import ast
import gzip
import hashlib
import importlib.metadata
import importlib.util
import json
import logging
import os
import platform
import re
import sys
import sysconfig
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from chimera.data.corpus.base import PackedText
from chimera.data.corpus.prose import paragraphs
from chimera.data.source import cache
from chimera.data.source.cache import fingerprint_of
from chimera.data.source.files import read_json
from chimera.data.source.splits import Sources, bounded
from chimera.errors import UserError

#: Part of the cache's key; raise it when the harvest or the cleaning changes.
VERSION = 1
#: Import name to distribution of the harvested packages: documented direct and indirect
#: dependencies of this project. The list is fixed, so that other installed packages do not change
#: the text. `pytorch_lightning` is missing because it repeats `lightning`.
_NAMES = """
    anyio click datasets dill einops filelock fsspec httpx jaxtyping jinja2 lightning matplotlib
    mpmath networkx numpy omegaconf packaging pandas pyarrow pydantic pyparsing requests rich
    setuptools sympy tokenizers torch torchmetrics tqdm urllib3 wandb
"""
PACKAGES = {name: name for name in _NAMES.split()} | {
    "PIL": "pillow",
    "dateutil": "python-dateutil",
    "fontTools": "fonttools",
    "huggingface_hub": "huggingface-hub",
    "hydra": "hydra-core",
    "markdown_it": "markdown-it-py",
    "torchgen": "torch",
}
_SKIPPED = {"tests", "test", "testing", "_vendor", "site-packages", "lib2to3", "idlelib"}
_SCOPES = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef, ast.If, ast.Try, ast.With)
_TOPICS = "pydoc_data/topics.py"
_SHORTEST = 200  # fewest characters of a document
_FEW = 1_000_000  # bytes of text for which only some modules are read
_AT_ONCE = 32  # modules
_PAUSE = 5.0  # seconds between lines of the log
#: Words by which a file is told that may repeat a paragraph: all, or all but one of so many.
_RARE = 6
_LONG_WORD = re.compile(rb"[a-z]{5,}")
_WORD = re.compile(rb"[a-z]+")
_NO_LETTERS = bytes(set(range(256)) - set(b"abcdefghijklmnopqrstuvwxyz"))
#: Paragraphs of a file.
Texts = list[str]

log = logging.getLogger("chimera")


@dataclass(frozen=True, kw_only=True)
class PyDocs(PackedText):
    """Documentation of installed packages.

    Args:
        documents: a harvest of another machine instead of this one's: JSON, texts by name, perhaps
            compressed (.gz). `python -m chimera.data.corpus.pydocs FILE` writes it.
    """

    documents: str | None = None

    def check(self) -> None:
        """See `Data.check`."""
        if self.documents is not None:
            if not Path(self.documents).is_file():
                raise UserError(
                    f"data.documents={self.documents} is no file; write it with"
                    " python -m chimera.data.corpus.pydocs FILE, or leave it out"
                )
            return
        check_python_sources("choose data=wikitext2 or data=text data.path=<your text>")

    def fingerprint(self) -> str:
        """Hash of the versions of Python and of all harvested packages, or of `documents`."""
        if self.documents is not None:
            content = hashlib.sha256(Path(self.documents).read_bytes()).hexdigest()
            return fingerprint_of("pydocs", VERSION, content, self.max_bytes)
        return fingerprint_of(
            "pydocs", VERSION, platform.python_version(), _versions(), self.max_bytes
        )

    @property
    def where(self) -> str:
        """See `Data.where`."""
        return "data=pydocs"

    def sources(self) -> Sources:
        """All documents, in a fixed order; the harvest is cached."""
        file = (
            Path(self.documents) if self.documents else cached_harvest(self.cache, self.max_bytes)
        )
        documents = read(file)
        # In the order of hashes, since the first documents by name are all of one package.
        by_hash = sorted(documents, key=_digest)
        kept = bounded((documents[name] for name in by_hash), self.max_bytes)
        return {"train": [sorted(kept)]}


def cached_harvest(root: Path, max_bytes: int | None = None) -> Path:
    """The file with this machine's harvest, written on first use.

    Args:
        root: directory of the cache.
        max_bytes: of the documents that are needed; few of them are read without the others.
    """
    most = max_bytes if max_bytes is not None and max_bytes < _FEW else None
    made_of = ("pydocs", VERSION, platform.python_version(), _versions())
    if most is None or cache.has(root, "pydocs", fingerprint_of(*made_of)):
        key = fingerprint_of(*made_of)
    else:
        key = fingerprint_of(*made_of, most)
    folder, _ = cache.entry(root, "pydocs", key, partial(_write_harvest, most=most))
    return folder / "documents.json"


def read(file: Path) -> dict[str, str]:
    """Texts by name.

    Raises:
        UserError: the file holds anything else.
    """
    documents = read_json(file)
    if not (
        isinstance(documents, dict)
        and documents
        and all(isinstance(text, str) for text in documents.values())
    ):
        raise UserError(f"data.documents={file} is no JSON object of texts by name")
    return documents


def harvest(most: int | None = None) -> dict[str, str]:
    """Read the prose of all modules, by module path in sorted order.

    Args:
        most: read only the modules that `PyDocs` takes for so many bytes; None reads all.
    """
    files = [(name, str(file)) for name, file in sorted(_sources())]
    log.info("data: reading documentation in %s files of Python and packages", f"{len(files):,}")
    with ProcessPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        if most is not None:
            documents = _joined(files, *_first_documents(pool, files, most))
            if sum(len(text.encode()) for text in documents.values()) > most:
                return documents
        every = pool.map(_harvest_file, [file for _, file in files], chunksize=32)
        return _joined(files, range(len(files)), dict(enumerate(_telling(every, len(files)))))


def _telling(results: Iterable[Texts], count: int) -> Iterator[Texts]:
    """Say every few seconds in the log how many files are read."""
    told = time.monotonic()
    for number, result in enumerate(results):
        if time.monotonic() - told > _PAUSE:
            told = time.monotonic()
            log.info("data: %s of %s files are read", f"{number:,}", f"{count:,}")
        yield result


def _joined(
    files: Sequence[tuple[str, str]], chosen: Iterable[int], texts: Mapping[int, Texts]
) -> dict[str, str]:
    """Documents of the chosen files; of equal paragraphs of all texts the first is kept."""
    first: dict[str, tuple[int, int]] = {}
    for number in sorted(texts):
        for place, text in enumerate(texts[number]):
            first.setdefault(_letters(text), (number, place))
    documents = {}
    for number in sorted(chosen):
        own = enumerate(texts[number])
        text = "\n".join(t for place, t in own if first[_letters(t)] == (number, place))
        if len(text) >= _SHORTEST:
            documents[files[number][0]] = text
    return documents


def _first_documents(
    pool: ProcessPoolExecutor, files: Sequence[tuple[str, str]], most: int
) -> tuple[list[int], dict[int, Texts]]:
    """Numbers of the files that are first in the order of hashes, with somewhat more than `most`.

    Returns:
        The numbers, and the paragraphs of these files and of all before them that may repeat one.
    """
    by_hash = sorted(range(len(files)), key=lambda number: _digest(files[number][0]))
    texts: dict[int, Texts] = {}
    size = 0
    for start in range(0, len(files), _AT_ONCE):
        numbers = by_hash[start : start + _AT_ONCE]
        found = list(pool.map(_harvest_file, [files[n][1] for n in numbers], chunksize=4))
        texts |= dict(zip(numbers, found, strict=True))
        size += sum(len(text.encode()) for each in found for text in each)
        if size > 1.2 * most:
            break
    chosen = list(texts)
    others = [(number, file) for number, (_, file) in enumerate(files) if number not in texts]
    looked = pool.map(Repeats.of(texts), others, chunksize=128)
    for (number, _), found_texts in zip(others, _telling(looked, len(others)), strict=True):
        texts[number] = found_texts
    return chosen, texts


@dataclass(frozen=True)
class Repeats:
    """Harvests a file only if it may repeat one of some paragraphs, by its words alone.

    Args:
        paragraphs: by each word that is looked for, the numbers of those that have it.
        words: of each paragraph, how many of them the file must have.
        phrases: of each, some of its letters that a file has in one piece, unless markup is there.
        before: of each, the number of its file; later files do not count.
    """

    paragraphs: dict[bytes, list[int]]
    words: list[int]
    phrases: list[list[bytes]]
    before: list[int]

    @classmethod
    def of(cls, texts: Mapping[int, Texts]) -> Repeats:
        """Looks for the paragraphs of these files; of each for its rarest words here."""
        unique = {_letters(text): (number, text) for number in texts for text in texts[number]}
        spoken = [_WORD.findall(text.lower().encode()) for _, text in unique.values()]
        often = Counter(chain.from_iterable(map(set, spoken)))
        paragraphs: dict[bytes, list[int]] = {}
        repeats = cls(paragraphs, [], [], [number for number, _ in unique.values()])
        for place, words in enumerate(spoken):
            long = {word for word in words if len(word) >= 5} or {b""}  # b"": in any file
            rare = sorted(long, key=lambda word: (often[word], -len(word), word))[:_RARE]
            for word in rare:
                paragraphs.setdefault(word, []).append(place)
            repeats.words.append(len(rare) - (len(rare) == _RARE))
            starts = range(0, max(1, len(words) - 3), 2)
            repeats.phrases.append([b"".join(words[start : start + 4]) for start in starts])
        return repeats

    def __call__(self, numbered: tuple[int, str]) -> Texts:
        number, file = numbered
        source = Path(file).read_bytes().lower()
        found = self.paragraphs.keys() & {b"", *_LONG_WORD.findall(source)}
        letters = b""
        places = Counter(place for word in found for place in self.paragraphs[word])
        for place, count in places.items():
            if count >= self.words[place] and number < self.before[place]:
                letters = letters or source.translate(None, _NO_LETTERS)
                phrases = self.phrases[place]
                if 3 * sum(phrase in letters for phrase in phrases) >= len(phrases):
                    return _harvest_file(file)
        return []


def _letters(text: str) -> str:
    return "".join(filter(str.isalpha, text.lower()))


def _digest(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()


def _write_harvest(folder: Path, most: int | None) -> dict[str, Any]:
    documents = harvest(most)
    (folder / "documents.json").write_text(
        json.dumps(documents, ensure_ascii=False), encoding="utf-8"
    )
    return {"documents": len(documents)}


def _harvest_file(file: str) -> list[str]:
    source = Path(file).read_bytes()
    if b'"""' not in source and b"'''" not in source and not file.endswith(_TOPICS):
        return []  # no docstring, so parsing would be wasted time
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):  # templates and files for other versions of Python
        return []
    nodes = ast.walk(tree) if file.endswith(_TOPICS) else _documentation(tree)
    return [
        paragraph
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for paragraph in paragraphs(node.value)
    ]


def _documentation(tree: ast.Module) -> Iterator[ast.AST]:
    """Docstrings, and strings in call statements of a module, such as `add_docstr(f, "…")`."""
    scopes: list[ast.AST] = [tree]
    # Visiting all expressions with ast.walk takes a quarter of the time and finds no more text.
    while scopes:
        body = getattr(scopes.pop(), "body", [])
        for first, statement in enumerate(body):
            if isinstance(statement, ast.Expr) and first == 0:
                yield statement.value
            scopes.extend([statement] if isinstance(statement, _SCOPES) else [])
    for statement in tree.body:
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            yield from ast.walk(statement.value)


def _sources() -> Iterator[tuple[str, Path]]:
    """Names and paths of all source files to read."""
    roots = [("", standard_library())]
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)
        for location in (spec.submodule_search_locations or []) if spec else []:
            roots.append((f"{package}/", Path(location)))
    for prefix, root in roots:
        for file in root.rglob("*.py"):
            inside = file.relative_to(root)
            if not _SKIPPED & set(inside.parts):
                yield prefix + inside.as_posix(), file


def _versions() -> list[tuple[str, str]]:
    installed = []
    for distribution in sorted(set(PACKAGES.values())):
        try:
            installed.append((distribution, importlib.metadata.version(distribution)))
        except importlib.metadata.PackageNotFoundError:
            continue
    return installed


def standard_library() -> Path:
    """The folder with the sources of Python's standard library."""
    return Path(sysconfig.get_path("stdlib"))


def check_python_sources(instead: str) -> None:
    """Refuse a Python without the sources of its standard library.

    Args:
        instead: what to do, for the message.

    Raises:
        UserError: the sources are missing.
    """
    if not (standard_library() / _TOPICS).is_file():
        raise UserError(f"Python's sources are not in {standard_library()}; {instead}")


if __name__ == "__main__":
    target = Path(sys.argv[1])
    text = json.dumps(harvest(), ensure_ascii=False, sort_keys=True).encode()
    target.write_bytes(gzip.compress(text, mtime=0) if target.suffix == ".gz" else text)
    print(f"{target}: {target.stat().st_size:,} bytes")
