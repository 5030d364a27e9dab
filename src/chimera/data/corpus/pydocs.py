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
import platform
import sys
import sysconfig
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chimera.data.corpus.base import PackedText
from chimera.data.corpus.prose import paragraphs
from chimera.data.source import cache
from chimera.data.source.cache import fingerprint_of
from chimera.data.source.files import read_json, text_in
from chimera.data.source.splits import Sources, bounded
from chimera.data.source.workers import cores, in_order
from chimera.errors import UserError
from chimera.safe_io import expanded, sha256_of

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
#: Bytes of text below which the harvest stops when it has enough: a first run starts in seconds.
_FEW = 1_000_000
_PAUSE = 5.0  # seconds between lines of the log
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
            if not expanded(self.documents).is_file():
                raise UserError(
                    f"data.documents={self.documents} is no file; write it with"
                    " python -m chimera.data.corpus.pydocs FILE, or leave it out"
                )
            return
        check_python_sources("choose data=wikitext2 or data=text data.path=<your text>")

    def fingerprint(self) -> str:
        """Hash of the versions of Python and of all harvested packages, or of `documents`."""
        if self.documents is not None:
            content = sha256_of(expanded(self.documents))
            return fingerprint_of("pydocs", VERSION, content, self.max_bytes)
        return fingerprint_of(*self._harvested, self.max_bytes)

    @property
    def where(self) -> str:
        """See `Data.where`."""
        return "data=pydocs"

    def sources(self) -> Sources:
        """All documents, in a fixed order; the harvest is cached."""

        def build(folder: Path) -> dict[str, Any]:
            documents = harvest(self._enough)
            text = json.dumps(documents, ensure_ascii=False)
            (folder / "documents.json").write_text(text, encoding="utf-8")
            return {"documents": len(documents)}

        if self.documents:
            documents = read(expanded(self.documents))
        else:
            key = fingerprint_of(*self._harvested, *([self._enough] if self._enough else []))
            folder, _ = cache.entry(self.cache, "pydocs", key, build)
            documents = read(folder / "documents.json")
        # In the order of hashes, since the first documents by name are all of one package.
        by_hash = sorted(documents, key=_digest)
        kept = bounded((documents[name] for name in by_hash), self.max_bytes)
        return {"train": [sorted(kept)]}

    @property
    def _enough(self) -> int | None:
        """Bytes after which the harvest stops; None if it reads all modules."""
        return self.max_bytes if self.max_bytes and self.max_bytes < _FEW else None

    @property
    def _harvested(self) -> tuple[object, ...]:
        """What decides the text of a harvest of this kind."""
        kind = ("few",) if self._enough else ()
        return ("pydocs", VERSION, platform.python_version(), _versions(), *kind)


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
    return {name: text_in(documents, name, str(file)) for name in documents}


def harvest(enough: int | None = None) -> dict[str, str]:
    """Read the prose of all modules, by module path; of equal paragraphs the first is kept.

    Args:
        enough: stop after so many bytes. The modules are then in the order of `_digest`, so a
            larger harvest begins with the same documents. None reads all, in sorted order.
    """
    files = sorted((name, str(file)) for name, file in _sources())
    if enough is not None:
        files.sort(key=lambda file: _digest(file[0]))
    log.info("data: reading documentation in %s files of Python and packages", f"{len(files):,}")
    processes = 1 if enough is not None else min(8, cores())
    texts = in_order(_harvest_file, [file for _, file in files], processes)
    documents: dict[str, str] = {}
    seen: set[str] = set()
    size = 0
    for (name, _), paragraphs_of in zip(files, _telling(texts, len(files)), strict=True):
        kept = []
        for paragraph in paragraphs_of:
            letters = "".join(filter(str.isalpha, paragraph.lower()))
            if letters not in seen:
                seen.add(letters)
                kept.append(paragraph)
        text = "\n".join(kept)
        if len(text) >= _SHORTEST:
            documents[name] = text
            size += len(text.encode())
        if enough is not None and size > enough:
            break
    return documents


def _telling(results: Iterable[list[str]], count: int) -> Iterator[list[str]]:
    """Say every few seconds in the log how many files are read."""
    told = time.monotonic()
    for number, result in enumerate(results):
        if time.monotonic() - told > _PAUSE:
            told = time.monotonic()
            log.info("data: %s of %s files are read", f"{number:,}", f"{count:,}")
        yield result


def _digest(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()


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
