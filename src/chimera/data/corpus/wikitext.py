"""WikiText-2 (SPEC D3; arXiv 1609.07843): Wikipedia articles, the corpus of SAIDL and QDYT.

It is read from the hub (`Salesforce/wikitext`, configuration `wikitext-2-raw-v1`) or from a local
folder with files for its splits (`train…`, `valid…`, `test…`, `wiki.train.raw`), raw or with
`<unk>`. A document is an article: the lines from one heading of the first level to the next. A
split that the folder lacks takes documents of train by their hashes; a missing train split takes
the larger part of valid.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from chimera.data.corpus.base import Data
from chimera.data.source import hub
from chimera.data.source.files import read_text, split_of
from chimera.data.source.fingerprint import file_fingerprint, fingerprint_of
from chimera.data.source.splits import Split, Splits, bounded, complete, shares_of
from chimera.errors import UserError

HUB = ("Salesforce/wikitext", "wikitext-2-raw-v1")
_INSTEAD = "data.path=<a folder with train, valid and test files>, or take data=pydocs"
_TITLE = re.compile(r" ?= [^=].* = ?")


@dataclass(frozen=True, kw_only=True)
class WikiText2(Data):
    """WikiText-2.

    Args:
        path: a folder with files for the splits; None reads from the hub.
    """

    path: str | None = None

    def check(self) -> None:
        """See `Corpus.check`."""
        if self.path is None:
            hub.check_dataset(*HUB, _INSTEAD)
        else:
            self._files(self.path)

    def fingerprint(self) -> str:
        """Hash of the local files; for the hub, of the name: the data are unchanged since 2016."""
        source: object = HUB
        if self.path is not None:
            files = self._files(self.path)
            source = [(split, file_fingerprint(file)) for split, file in sorted(files.items())]
        return fingerprint_of("wikitext2", 1, source, self.max_bytes)

    def splits(self) -> Splits:
        """Documents by the splits of the source; missing splits are made."""
        lines: dict[Split, Iterable[str]]
        if self.path is None:
            lines = hub.load_rows(*HUB, "text", _INSTEAD)
        else:
            lines = {s: read_text(f).split("\n") for s, f in self._files(self.path).items()}
        shares = shares_of(lines)
        max_bytes = {s: self.max_bytes and self.max_bytes * shares[s] for s in lines}
        documents = {s: bounded(articles(rows), max_bytes[s]) for s, rows in lines.items()}
        return complete(documents, self.path or HUB[0])

    @staticmethod
    def _files(path: str) -> dict[Split, Path]:
        folder = Path(path).expanduser()
        if not folder.is_dir():
            raise UserError(f"data.path={path} is no folder; give {_INSTEAD}")
        files = {split_of(f): f for f in sorted(folder.iterdir(), reverse=True) if f.is_file()}
        named = {split: file for split, file in files.items() if split is not None}
        if not named:
            raise UserError(f"data.path={path} has no train, valid or test file; give {_INSTEAD}")
        return named


def articles(lines: Iterable[str]) -> Iterable[str]:
    """Join lines to articles, without blank lines."""
    article: list[str] = []
    for line in lines:
        line = line.rstrip("\n")
        if _TITLE.fullmatch(line) and article:
            yield "\n".join(article)
            article = []
        if line.strip():
            article.append(line.strip())
    if article:
        yield "\n".join(article)
