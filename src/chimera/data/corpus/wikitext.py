"""WikiText (SPEC D3; arXiv 1609.07843): Wikipedia articles; WikiText-2 is that of SAIDL and QDYT.

It is read from the hub (`Salesforce/wikitext`) or from a local
folder with files for its splits (`train…`, `valid…`, `test…`, `wiki.train.raw`), raw or with
`<unk>`. A document is an article: the lines from one heading of the first level to the next. A
split that the folder lacks takes documents of train by their hashes; a missing train split takes
the larger part of valid.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from chimera.data.corpus.base import StreamedText
from chimera.data.source import hub
from chimera.data.source.cache import file_fingerprints, fingerprint_of
from chimera.data.source.files import TEXT, Repeatable, format_of, read_lines, split_of
from chimera.data.source.splits import SHARES, Sources, Split, bounded, shares_of
from chimera.errors import UserError
from chimera.safe_io import expanded

HUB = ("Salesforce/wikitext", "wikitext-2-raw-v1")
_INSTEAD = "data.path=<a folder with train, valid and test files>, or take data=pydocs"
_TITLE = re.compile(r" ?= [^=].* = ?")


@dataclass(frozen=True, kw_only=True)
class WikiText2(StreamedText):
    """WikiText-2, or with `config` another WikiText.

    Args:
        path: a folder with files for the splits; None reads from the hub.
        config: configuration of the hub's data set; None is WikiText-2.
        join: `rows` for one text a split: the rows of Hugging Face's data set, of which each line
            is one, with a blank line between two. As SAIDL's step counts imply, it has 2.4 % more
            tokens of GPT-2 than articles. None joins articles.
    """

    path: str | None = None
    config: str | None = None
    join: Literal["rows"] | None = None

    def check(self) -> None:
        """See `Data.check`."""
        if self.path is None:
            hub.check_dataset(*self._on_hub, _INSTEAD)
        elif missing := (self.join and {*SHARES} - self._files(self.path).keys()):
            raise UserError(
                f"data.join=rows makes one text of a split, so none can be taken from it;"
                f" data.path={self.path} has no file for {' and '.join(sorted(missing))}"
            )
        else:
            self._files(self.path)

    def fingerprint(self) -> str:
        """Hash of the local files; for the hub, of the name: the data are unchanged since 2016."""
        source: object = self._on_hub
        if self.path is not None:
            files = sorted(self._files(self.path).items())
            digests = file_fingerprints([file for _, file in files], self.cache)
            source = [(split, digest) for (split, _), digest in zip(files, digests, strict=True)]
        join = (self.join,) if self.join else ()
        return fingerprint_of("wikitext2", 1, source, self.max_bytes, *self.variant, *join)

    @property
    def where(self) -> str:
        """See `StreamedText.where`."""
        return self.path or HUB[0]

    def sources(self) -> Sources:
        """Articles, or one text, by the splits of the source."""
        lines: dict[Split, Iterable[str]]
        if self.path is None:
            lines = hub.load_rows(*self._on_hub, "text", _INSTEAD)
        else:
            lines = {s: Repeatable(read_lines, f) for s, f in self._files(self.path).items()}
        shares = shares_of(lines)
        max_bytes = {s: self.max_bytes and self.max_bytes * shares[s] for s in lines}
        texts = joined_rows if self.join else articles
        return {s: [Repeatable(texts, rows, max_bytes[s])] for s, rows in lines.items()}

    @property
    def _on_hub(self) -> tuple[str, str]:
        return HUB[0], self.config or HUB[1]

    @staticmethod
    def _files(path: str) -> dict[Split, Path]:
        folder = expanded(path)
        if not folder.is_dir():
            raise UserError(f"data.path={path} is no folder; give {_INSTEAD}")
        named: dict[Split, Path] = {}
        for file in sorted(folder.iterdir()):
            split = split_of(Path(file.name)) if format_of(file) in TEXT else None
            if split and file.is_file() and file.name[0] != ".":
                if split in named:
                    raise UserError(f"{file} is a second file of {split}; leave one in the folder")
                named[split] = file
        if not named:
            suffixes = ", ".join(TEXT)
            raise UserError(
                f"data.path={path} has no train, valid or test file ({suffixes}); give {_INSTEAD}"
            )
        return named


def articles(lines: Iterable[str], max_bytes: float | None = None) -> Iterator[str]:
    """Join lines to articles without blank lines, up to `max_bytes` of text."""
    return bounded(_joined(lines), max_bytes)


def joined_rows(lines: Iterable[str], max_bytes: float | None = None) -> Iterator[str]:
    """One text of all rows, up to about `max_bytes`.

    A row of Hugging Face's data set is a line with its end, and an empty line has none.
    """
    rows = list[str]()
    size = 0
    for line in lines:
        rows.append(line.rstrip("\n") + "\n" if line.strip() else "")
        size += len(rows[-1].encode()) + 2
        if max_bytes is not None and size >= max_bytes:
            break
    if rows:
        yield "\n\n".join(rows)


def _joined(lines: Iterable[str]) -> Iterator[str]:
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
