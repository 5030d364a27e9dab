"""RedPajama-V2 (arXiv 2411.12372), of which TITAN reads the Spanish part.

Its documents are in compressed JSON lines, one file for each of 5,000 shards of a snapshot of
Common Crawl. A list names the files of a language, snapshot and partition. The first `files` of
each list are fetched, once, and read as streams; `data.path` names files that are here already.
"""

from __future__ import annotations

import http.client
import logging
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chimera.data.corpus.text import Text
from chimera.data.source import cache
from chimera.data.source.cache import fingerprint_of
from chimera.data.source.splits import Split
from chimera.errors import FULL, UserError
from chimera.types import PositiveInt

log = logging.getLogger("chimera")

_KIND = "fetched"
_ATTEMPTS = 4
_PAUSE = 2.0  # seconds before the second attempt, more before each further one


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
        """See `Data.check`; lists that are not in the cache are fetched, a few kB each."""
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


def fetched(root: Path, url: str) -> Path:
    """Path of a file in the cache; fetched if it is not there.

    Args:
        root: directory of the cache.
        url: http, https or file.

    Raises:
        UserError: it cannot be fetched.
    """
    name = url.rpartition("/")[2]

    def build(folder: Path) -> dict[str, Any]:
        log.info("data: fetching %s", url)
        _fetch(url, folder / name)
        return {"url": url}

    folder, _ = cache.entry(root, _KIND, fingerprint_of(_KIND, 1, url), build)
    return folder / name


def _fetch(url: str, file: Path) -> None:
    for attempt in range(_ATTEMPTS):
        time.sleep(_PAUSE * (2**attempt - 1))
        try:
            with urllib.request.urlopen(url, timeout=60) as answer, file.open("wb") as stream:
                shutil.copyfileobj(answer, stream, 1 << 20)
            size = answer.headers.get("Content-Length")
            if size is None or int(size) == file.stat().st_size:
                return
            reason = f"{file.stat().st_size} of {size} bytes arrived"
        except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
            if getattr(error, "errno", None) in FULL:
                raise
            reason = str(getattr(error, "reason", error))
            # Another attempt cannot help if there is no connection or the server refuses.
            if isinstance(error, urllib.error.URLError) and getattr(error, "code", 0) < 500:
                break
    raise UserError(f"{url} cannot be fetched ({reason}); check the connection, or give data.path")
