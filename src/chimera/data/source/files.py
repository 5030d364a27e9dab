"""Reading files: which split one is, UTF-8 or a clear line, rows of JSON lines and Parquet."""

from __future__ import annotations

import codecs
import json
import re
from pathlib import Path

from chimera.data.source.splits import Split
from chimera.errors import UserError

_MARKS: dict[str, Split] = {
    "train": "train",
    "valid": "valid",
    "validation": "valid",
    "val": "valid",
    "dev": "valid",
    "test": "test",
}


def split_of(file: Path) -> Split | None:
    """The split that a file's name speaks of: `train.txt`, `wiki.valid.tokens`, `books_dev.txt`."""
    words = re.split(r"[^a-z]+", file.name.lower())
    return next((_MARKS[word] for word in words if word in _MARKS), None)


def read_text(file: Path, most: int | None = None) -> str:
    """The text of a file, or of its first lines in about `most` bytes.

    Raises:
        UserError: not UTF-8, naming the byte.
    """
    with file.open("rb") as stream:
        raw = stream.read(-1 if most is None else most)
        whole = not stream.read(1)
    try:
        # Not final: the bound may have cut a character.
        text = codecs.getincrementaldecoder("utf-8")().decode(raw, final=whole)
    except UnicodeDecodeError as error:
        raise UserError(
            f"{file}: byte {error.start} ({raw[error.start]:#04x}) is not UTF-8;"
            f" convert it first, e.g. iconv -f latin1 -t utf-8"
        ) from error
    if not whole:  # at a line's end; a single long line at a blank
        text = text[: (text.rfind("\n") + 1) or (text.rfind(" ") + 1) or None]
    return text.removeprefix("\ufeff")


def read_rows(file: Path, field: str, most: int | None = None) -> list[str]:
    """One text field of a `.jsonl` or `.parquet` file.

    Raises:
        UserError: a line that is no JSON, or rows without such a field.
    """
    return (_parquet if file.suffix == ".parquet" else _jsonl)(file, field, most)


def _jsonl(file: Path, field: str, most: int | None) -> list[str]:
    rows = []
    for number, line in enumerate(read_text(file, most).splitlines(), 1):
        if line.strip():
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise UserError(f"{file}: line {number} is not JSON ({error.msg})") from error
            keys = list(row) if isinstance(row, dict) else []
            rows.append(_text(file, row[field] if field in keys else None, field, keys))
    return rows


def _parquet(file: Path, field: str, most: int | None) -> list[str]:
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.ParquetFile(file)
    except pyarrow.ArrowInvalid as error:
        raise UserError(f"{file} is not Parquet ({' '.join(str(error).split())})") from error
    names = table.schema_arrow.names
    rows: list[str] = []
    left = float("inf") if most is None else most
    for batch in table.iter_batches(columns=[field] if field in names else []):
        for value in batch.column(0).to_pylist() if batch.num_columns else [None]:
            rows.append(_text(file, value, field, names))
            left -= len(rows[-1])
        if left <= 0:
            break
    return rows


def _text(file: Path, value: object, field: str, names: list[str]) -> str:
    if not isinstance(value, str):
        raise UserError(
            f"{file} has no text in data.field={field}; its fields are {', '.join(names) or 'none'}"
        )
    return value
