"""Read text files: the split that a name tells, UTF-8 text, rows of JSON lines and Parquet."""

from __future__ import annotations

import codecs
import json
import re
from pathlib import Path

from chimera.data.source.splits import Split
from chimera.errors import UserError

#: Words in file names to splits.
_SPLIT_WORDS: dict[str, Split] = {
    "train": "train",
    "valid": "valid",
    "validation": "valid",
    "val": "valid",
    "dev": "valid",
    "test": "test",
}


def split_of(file: Path) -> Split | None:
    """Split named in a file name (`train.txt`, `wiki.valid.tokens`, `books_dev.txt`), or None."""
    words = re.split(r"[^a-z]+", file.name.lower())
    return next((_SPLIT_WORDS[word] for word in words if word in _SPLIT_WORDS), None)


def read_text(file: Path, max_bytes: int | None = None) -> str:
    """Read the text of a file, without a byte-order mark.

    Args:
        file: UTF-8 text.
        max_bytes: read only the whole lines within this many bytes; None reads all.

    Raises:
        UserError: the file is not UTF-8; the message names the byte.
    """
    with file.open("rb") as stream:
        raw = stream.read(-1 if max_bytes is None else max_bytes)
        whole = not stream.read(1)
    try:
        # `final` is false for a part of a file, whose last character may be incomplete.
        text = codecs.getincrementaldecoder("utf-8")().decode(raw, final=whole)
    except UnicodeDecodeError as error:
        raise UserError(
            f"{file}: byte {error.start} ({raw[error.start]:#04x}) is not UTF-8;"
            f" convert it first, e.g. iconv -f latin1 -t utf-8"
        ) from error
    if not whole:  # cut after the last line end, or in a single long line after the last blank
        text = text[: (text.rfind("\n") + 1) or (text.rfind(" ") + 1) or None]
    return text.removeprefix("\ufeff")


def read_rows(file: Path, field: str, max_bytes: int | None = None) -> list[str]:
    """Read one text field of a `.jsonl` or `.parquet` file.

    Args:
        file: its suffix decides the format.
        field: name of the field.
        max_bytes: stop after about this much; None reads all.

    Raises:
        UserError: a line that is not JSON, a file that is not Parquet, a row without text in the
            field.
    """
    return (_parquet if file.suffix == ".parquet" else _jsonl)(file, field, max_bytes)


def _jsonl(file: Path, field: str, max_bytes: int | None) -> list[str]:
    rows = []
    for number, line in enumerate(read_text(file, max_bytes).splitlines(), 1):
        if line.strip():
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise UserError(f"{file}: line {number} is not JSON ({error.msg})") from error
            keys = list(row) if isinstance(row, dict) else []
            rows.append(_text(file, row[field] if field in keys else None, field, keys))
    return rows


def _parquet(file: Path, field: str, max_bytes: int | None) -> list[str]:
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.ParquetFile(file)
    except pyarrow.ArrowInvalid as error:
        raise UserError(f"{file} is not Parquet ({' '.join(str(error).split())})") from error
    names = table.schema_arrow.names
    rows: list[str] = []
    remaining = float("inf") if max_bytes is None else max_bytes
    for batch in table.iter_batches(columns=[field] if field in names else []):
        for value in batch.column(0).to_pylist() if batch.num_columns else [None]:
            rows.append(_text(file, value, field, names))
            remaining -= len(rows[-1])
        if remaining <= 0:
            break
    return rows


def _text(file: Path, value: object, field: str, names: list[str]) -> str:
    if not isinstance(value, str):
        raise UserError(
            f"{file} has no text in data.field={field}; its fields are {', '.join(names) or 'none'}"
        )
    return value
