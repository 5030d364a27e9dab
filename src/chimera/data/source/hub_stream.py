"""The first part of a data set of the hub, read as a stream and kept in the cache.

For data sets that are too large to fetch as a whole. The text is needed up to three times (to
divide it, for the tokenizer, to encode it), so it is kept, in compressed JSON lines. An interrupted
stream goes on after its last whole file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from chimera.data.source import cache, hub
from chimera.data.source.fingerprint import fingerprint_of
from chimera.errors import UserError

_KIND = "hub"
_FILE_BYTES = 1 << 26  # of text in each file
_STATE = "state.json"


def streamed(
    root: Path, name: str, config: str | None, field: str, max_bytes: int, instead: str
) -> list[Path]:
    """Files of JSON lines `{"text": …}` with the first `max_bytes` of a data set's train split.

    Args:
        root: directory of the cache.
        name, config, instead: as of `hub.check_dataset`.
        field: name of the column.
        max_bytes: of text; the last row may exceed it.

    Raises:
        UserError: the data set is not available or has no such column.
    """

    def build(folder: Path) -> dict[str, Any]:
        return _Stream(folder, name, config, field, instead).write(max_bytes)

    key = _key(name, config, field, max_bytes)
    folder, _ = cache.entry(root, _KIND, key, build, resume=True)
    return sorted(folder.glob("*.jsonl.zst"))


def is_streamed(root: Path, name: str, config: str | None, field: str, max_bytes: int) -> bool:
    """Whether `streamed` has its files in the cache."""
    return cache.has(root, _KIND, _key(name, config, field, max_bytes))


def _key(*settings: object) -> str:
    return fingerprint_of(_KIND, 1, *settings)


class _Stream:
    """Writes a stream to a folder, file by file."""

    def __init__(
        self, folder: Path, name: str, config: str | None, field: str, instead: str
    ) -> None:
        self.folder = folder
        self.name = name
        self.config = config
        self.field = field
        self.instead = instead
        state = folder / _STATE
        #: Number and bytes of the whole files, and the position of `datasets` behind them.
        self.done: dict[str, Any] = {"files": 0, "bytes": 0, "rows": 0, "position": None}
        if state.exists():
            self.done = json.loads(state.read_text())

    def write(self, max_bytes: int) -> dict[str, Any]:
        """Write up to `max_bytes` of text; return the numbers of files, rows and bytes."""
        with hub.errors(self.name, self.config, self.instead):
            data = self._open()
            if self.done["position"] is not None:
                data.load_state_dict(self.done["position"])
            rows = iter(data)
            while self.done["bytes"] < max_bytes and self._write_file(data, rows, max_bytes):
                pass
        (self.folder / _STATE).unlink(missing_ok=True)
        return {key: self.done[key] for key in ("files", "rows", "bytes")}

    def _open(self) -> Any:
        from datasets import load_dataset

        data = load_dataset(self.name, self.config, split="train", streaming=True)
        names = data.column_names
        return data.select_columns([self.field]) if names and self.field in names else data

    def _write_file(self, data: Any, rows: Iterator[dict[str, Any]], max_bytes: int) -> bool:
        """Write one file; whether there may be more rows."""
        import pyarrow

        file = self.folder / f"{self.done['files']:05d}.jsonl.zst"
        temporary = file.with_suffix(".writing")
        size = count = 0
        with pyarrow.CompressedOutputStream(str(temporary), "zstd") as stream:
            for row in rows:
                text = self._text(row)
                stream.write(json.dumps({"text": text}, ensure_ascii=False).encode() + b"\n")
                size = size + len(text.encode())
                count = count + 1
                if size >= _FILE_BYTES or self.done["bytes"] + size >= max_bytes:
                    break
        if not count:
            temporary.unlink()
            return False
        os.replace(temporary, file)
        self.done = {
            "files": self.done["files"] + 1,
            "bytes": self.done["bytes"] + size,
            "rows": self.done["rows"] + count,
            "position": data.state_dict(),
        }
        state = self.folder / f"{_STATE}.writing"
        state.write_text(json.dumps(self.done))
        os.replace(state, self.folder / _STATE)
        return True

    def _text(self, row: dict[str, Any]) -> str:
        text = row.get(self.field)
        if not isinstance(text, str):
            raise UserError(
                f"{self.name} has no text in data.field={self.field};"
                f" its columns are {', '.join(row)}"
            )
        return text
