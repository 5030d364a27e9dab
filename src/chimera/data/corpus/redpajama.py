"""RedPajama-V2 (arXiv 2411.12372), of which TITAN reads the Spanish part.

Its documents are in compressed JSON lines, one file for each of 5,000 shards of a snapshot of
Common Crawl. A list names the files of a language, snapshot and partition. The first `files` of
each list are fetched, once, and read as streams; `data.path` names files that are here already.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from chimera.data.corpus.text import Text
from chimera.data.source.fetch import fetched
from chimera.data.source.fingerprint import fingerprint_of
from chimera.data.source.splits import Split
from chimera.types import PositiveInt


@dataclass(frozen=True, kw_only=True)
class RedPajama(Text):
    """RedPajama-V2.

    Args:
        language: de, en, es, fr or it.
        snapshots: of Common Crawl, such as 2023-06.
        partition: head_middle or tail, by the perplexity of the text.
        files: of each snapshot; None takes all.
        url: of the collection.
    """

    field: str = "raw_content"
    language: str = "es"
    snapshots: Sequence[str] = ("2023-06",)
    partition: str = "head_middle"
    files: PositiveInt | None = 16
    url: str = "https://data.together.xyz/redpajama-data-v2/v1.0.0"

    def check(self) -> None:
        """See `Corpus.check`; lists that are not in the cache are fetched, a few kB each."""
        if self.path is not None:
            super().check()
        else:
            self._urls()

    def fingerprint(self) -> str:
        """Hash of the local files, else of the choice: a snapshot does not change."""
        if self.path is not None:
            return super().fingerprint()
        choice = (self.language, list(self.snapshots), self.partition, self.files)
        settings = (self.field, self.max_bytes, *self.variant)
        return fingerprint_of("redpajama", 1, choice, settings)

    @property
    def where(self) -> str:
        """See `StreamedText.where`."""
        return f"RedPajama-V2 ({self.language})" if self.path is None else super().where

    def _files(self) -> dict[Split, list[Path]]:
        if self.path is not None:
            return super()._files()
        files: dict[Split, list[Path]] = {}
        files["train"] = [fetched(self.cache, url) for url in self._urls()]
        return files | self._named()

    def _urls(self) -> list[str]:
        urls = []
        for snapshot in self.snapshots:
            name = f"{self.language}-{snapshot}-{self.partition}.txt"
            listed = fetched(self.cache, f"{self.url}/listings/{name}").read_text().split()
            urls += [f"{self.url}/documents/{entry}.json.gz" for entry in listed[: self.files]]
        return urls
