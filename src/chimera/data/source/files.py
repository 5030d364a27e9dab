"""Read text files as streams: UTF-8 lines, paragraphs, rows of JSON lines and Parquet.

Nothing here holds a whole file in memory, except `read_text`.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from chimera.data.source.compressed import format_of, open_bytes
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
_BOM = "\ufeff"
_ROWS_AT_ONCE = 1024  # of Parquet
#: Bytes of a file by which text is told from other contents.
BEGINNING = 4096


def split_of(file: Path) -> Split | None:
    """Split named in a file name (`train.txt`, `wiki.valid.tokens`, `books_dev.txt`), or None."""
    words = re.split(r"[^a-z]+", file.name.lower())
    return next((_SPLIT_WORDS[word] for word in words if word in _SPLIT_WORDS), None)


def read_text(file: Path, max_bytes: int | None = None) -> str:
    """Read the text of a file, without a byte-order mark.

    Args:
        file: UTF-8 text, possibly compressed.
        max_bytes: read only the whole lines within this many bytes; None reads all.

    Raises:
        UserError: the file is not UTF-8; the message names the byte.
    """
    return "".join(read_lines(file, max_bytes))


def read_lines(file: Path, max_bytes: int | None = None) -> Iterator[str]:
    """Read the lines of a file one by one, with their ends and without a byte-order mark.

    Args:
        file: UTF-8 text, possibly compressed.
        max_bytes: read only the whole lines within this many bytes, or the words of the first line
            if it is longer; None reads all.

    Raises:
        UserError: the file is not UTF-8; the message names the byte.
    """
    position = 0
    with open_bytes(file) as stream:
        for raw in stream:
            cut = max_bytes is not None and position + len(raw) > max_bytes
            if cut and position:
                return
            line = _decoded(file, raw[:max_bytes] if cut else raw, position, final=not cut)
            if cut:
                line = line[: (line.rfind(" ") + 1) or None]
            yield line if position else line.removeprefix(_BOM)
            position += len(raw)


def check_beginning(file: Path) -> None:
    """Refuse a file whose first bytes are no text, before much is loaded or read.

    Raises:
        UserError: they are not UTF-8, or of a picture, an archive or the like.
    """
    with open_bytes(file) as stream:
        raw = stream.read(BEGINNING)
    if b"\0" in raw:
        raise UserError(f"{file} is not UTF-8 text; it has zero bytes, as pictures and archives do")
    _decoded(file, raw, 0, final=False)


def _decoded(file: Path, raw: bytes, position: int, *, final: bool) -> str:
    try:
        # `final` is false for a part of a line, whose last character may be incomplete.
        return codecs.getincrementaldecoder("utf-8")().decode(raw, final=final)
    except UnicodeDecodeError as error:
        raise UserError(
            f"{file}: byte {position + error.start} ({raw[error.start]:#04x}) is not UTF-8;"
            f" convert it first, e.g. iconv -f latin1 -t utf-8"
        ) from error


@dataclass(frozen=True)
class TextUnits:
    """Paragraphs of a text file, separated by blank lines; its lines if it has no blank lines.

    Args:
        file: UTF-8 text, possibly compressed.
        max_bytes: as of `read_lines`.
    """

    file: Path
    max_bytes: int | None = None

    def __iter__(self) -> Iterator[str]:
        return self._paragraphs() if self._has_paragraphs() else filter(None, self._lines())

    def _lines(self) -> Iterator[str]:
        for line in read_lines(self.file, self.max_bytes):
            for part in line.splitlines():
                yield part.strip()

    def _has_paragraphs(self) -> bool:
        """Whether a blank line stands between others."""
        text = blank_after_text = False
        for line in self._lines():
            if line and blank_after_text:
                return True
            text = text or bool(line)
            blank_after_text = text and not line
        return False

    def _paragraphs(self) -> Iterator[str]:
        paragraph: list[str] = []
        for line in self._lines():
            if line:
                paragraph.append(line)
            elif paragraph:
                yield "\n".join(paragraph)
                paragraph = []
        if paragraph:
            yield "\n".join(paragraph)


@dataclass(frozen=True)
class RowUnits:
    """One text field of a file of JSON lines or of Parquet.

    Args:
        file: its suffix decides the format; JSON lines may be compressed.
        field: name of the field.
        max_bytes: read only the whole JSON lines within this many bytes; None reads all.

    Raises:
        UserError: a line that is not JSON, a file that is not Parquet, a row without text in the
            field.
    """

    file: Path
    field: str
    max_bytes: int | None = None

    def __iter__(self) -> Iterator[str]:
        return self._parquet() if format_of(self.file) == ".parquet" else self._json_lines()

    def _json_lines(self) -> Iterator[str]:
        for number, line in enumerate(read_lines(self.file, self.max_bytes), 1):
            if line.strip():
                try:
                    row = json.loads(line)
                except json.JSONDecodeError as error:
                    raise UserError(
                        f"{self.file}: line {number} is not JSON ({error.msg})"
                    ) from error
                keys = list(row) if isinstance(row, dict) else []
                text = self._text(row[self.field] if self.field in keys else None, keys)
                # JSON can name halves of UTF-16 pairs, which are no text.
                yield text.encode(errors="replace").decode() if "\\ud" in line.lower() else text

    def _parquet(self) -> Iterator[str]:
        import pyarrow
        import pyarrow.parquet

        try:
            table = pyarrow.parquet.ParquetFile(self.file)
        except pyarrow.ArrowInvalid as error:
            raise UserError(
                f"{self.file} is not Parquet ({' '.join(str(error).split())})"
            ) from error
        with table:
            names = table.schema_arrow.names
            columns = [self.field] if self.field in names else []
            for batch in table.iter_batches(batch_size=_ROWS_AT_ONCE, columns=columns):
                for value in batch.column(0).to_pylist() if columns else [None]:
                    yield self._text(value, names)

    def _text(self, value: object, names: list[str]) -> str:
        if not isinstance(value, str):
            raise UserError(
                f"{self.file} has no text in data.field={self.field};"
                f" its fields are {', '.join(names) or 'none'}"
            )
        return value
