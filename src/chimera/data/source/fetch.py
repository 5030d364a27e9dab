"""Fetch a file from a URL into the cache, whole or not at all."""

from __future__ import annotations

import http.client
import logging
import shutil
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from chimera.data.source import cache
from chimera.data.source.fingerprint import fingerprint_of
from chimera.errors import UserError

log = logging.getLogger("chimera")

_KIND = "fetched"
_ATTEMPTS = 4
_PAUSE = 2.0  # seconds before the second attempt, doubled before each further one


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
        try:
            with urllib.request.urlopen(url, timeout=60) as answer, file.open("wb") as stream:
                shutil.copyfileobj(answer, stream, 1 << 20)
            size = answer.headers.get("Content-Length")
            if size is None or int(size) == file.stat().st_size:
                return
            reason = f"{file.stat().st_size} of {size} bytes arrived"
        except urllib.error.HTTPError as error:
            reason = str(error)
            if error.code < 500:
                break
        except urllib.error.URLError as error:  # no connection at all
            reason = str(error.reason)
            break
        except (http.client.HTTPException, TimeoutError, ConnectionError) as error:
            reason = str(error)
        if attempt + 1 < _ATTEMPTS:
            time.sleep(_PAUSE * 2**attempt)
    raise UserError(f"{url} cannot be fetched ({reason}); check the connection, or give data.path")
