"""Read the files of a user: lines and paragraphs of text, JSON, JSON lines, Parquet, arrays.

Every file that somebody else may have written is read here. It is data, never a program, and one
that holds anything else is refused in one line. Text and JSON lines may be compressed: their names
end in `.gz` or `.zst`. Nothing but `read_text`, `read_json` and `read_arrays` holds a whole file in
memory.
"""

from __future__ import annotations

import codecs
import gzip
import io
import json
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import numpy.typing as npt

from chimera.data.source.splits import Split
from chimera.errors import UserError, one_line

COMPRESSED = (".gz", ".zst")
#: Words in names of files and of the hub's splits to splits.
SPLIT_WORDS: dict[str, Split] = {
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


class Repeatable:
    """Texts that a function generates; they can be read several times and sent to processes.

    Args:
        generate: returns an iterator over the texts.
        arguments: of `generate`.
    """

    def __init__(self, generate: Callable[..., Iterator[str]], *arguments: Any) -> None:
        self.generate = generate
        self.arguments = arguments

    def __iter__(self) -> Iterator[str]:
        return self.generate(*self.arguments)


def split_of(file: Path) -> Split | None:
    """Split named in a file name (`train.txt`, `wiki.valid.tokens`, `books_dev.txt`), or None."""
    words = re.split(r"[^a-z]+", file.name.lower())
    return next((SPLIT_WORDS[word] for word in words if word in SPLIT_WORDS), None)


def format_of(file: Path) -> str:
    """Suffix of the decompressed file: `.jsonl` of `a.jsonl.gz`."""
    return Path(file.stem).suffix if file.suffix in COMPRESSED else file.suffix


@contextmanager
def open_bytes(file: Path) -> Iterator[BinaryIO]:
    """Open a file for reading; files of several gzip members or zstd frames are read to the end.

    Raises:
        UserError: the compressed data are damaged or end early.
    """
    try:
        with _opened(file) as stream:
            yield stream
    except (EOFError, zlib.error, OSError) as error:
        # pyarrow raises an OSError without a number for damaged data, as gzip does.
        if isinstance(error, OSError) and (file.suffix not in COMPRESSED or error.errno):
            raise
        raise UserError(f"{file} is damaged ({one_line(error)}); fetch it again") from error


def _opened(file: Path) -> BinaryIO:
    if file.suffix == ".gz":
        return cast(BinaryIO, gzip.open(file))
    if file.suffix == ".zst":
        import pyarrow

        raw = pyarrow.CompressedInputStream(pyarrow.OSFile(str(file)), "zstd")
        return io.BufferedReader(raw, 1 << 18)
    return file.open("rb")


def read_text(file: Path, max_bytes: int | None = None) -> str:
    """Read the text of a file; see `read_lines`."""
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


def paragraphs(file: Path, max_bytes: int | None = None) -> Iterator[str]:
    """Paragraphs of a text file, separated by blank lines; its lines if it has no blank lines.

    Args:
        file: UTF-8 text, possibly compressed.
        max_bytes: as of `read_lines`.
    """
    if not _has_paragraphs(_stripped_lines(file, max_bytes)):
        yield from filter(None, _stripped_lines(file, max_bytes))
        return
    paragraph: list[str] = []
    for line in _stripped_lines(file, max_bytes):
        if line:
            paragraph.append(line)
        elif paragraph:
            yield "\n".join(paragraph)
            paragraph = []
    if paragraph:
        yield "\n".join(paragraph)


def _stripped_lines(file: Path, max_bytes: int | None) -> Iterator[str]:
    for line in read_lines(file, max_bytes):
        for part in line.splitlines():
            yield part.strip()


def _has_paragraphs(lines: Iterator[str]) -> bool:
    """Whether a blank line stands between others."""
    text = blank_after_text = False
    for line in lines:
        if line and blank_after_text:
            return True
        text = text or bool(line)
        blank_after_text = text and not line
    return False


def read_json(file: Path) -> Any:
    """The value of a JSON file; of JSON lines the list of their values.

    Raises:
        UserError: the file is neither.
    """
    text = read_text(file)
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        if error.msg != "Extra data":
            raise UserError(f"{file} is not JSON at line {error.lineno} ({error.msg})") from error
    return list(read_json_lines(file))


def read_json_lines(file: Path, max_bytes: int | None = None) -> Iterator[Any]:
    """The values of JSON lines; blank lines do not count.

    Args:
        file: possibly compressed.
        max_bytes: read only the whole lines within this many bytes; None reads all.

    Raises:
        UserError: a line is not JSON.
    """
    for number, line in enumerate(read_lines(file, max_bytes), 1):
        if line.strip():
            try:
                yield json.loads(line)
            except json.JSONDecodeError as error:
                raise UserError(f"{file}: line {number} is not JSON ({error.msg})") from error


def field_texts(file: Path, field: str, max_bytes: int | None = None) -> Iterator[str]:
    """One text field of a file of JSON lines or of Parquet.

    Args:
        file: its suffix decides the format; JSON lines may be compressed.
        field: name of the field.
        max_bytes: as of `read_json_lines`.

    Raises:
        UserError: a line that is not JSON, a file that is not Parquet, a row without text in the
            field.
    """
    rows = (
        _parquet_rows(file, field)
        if format_of(file) == ".parquet"
        else read_json_lines(file, max_bytes)
    )
    for row in rows:
        text = row.get(field) if isinstance(row, dict) else None
        if not isinstance(text, str):
            names = ", ".join(row) if isinstance(row, dict) else ""
            raise UserError(
                f"{file} has no text in data.field={field}; its fields are {names or 'none'}"
            )
        # JSON can name halves of UTF-16 pairs, which are no text.
        yield text.encode(errors="replace").decode()


def _parquet_rows(file: Path, field: str) -> Iterator[dict[str, Any]]:
    """The rows of a Parquet file; without other columns if it has the field."""
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.ParquetFile(file)
    except pyarrow.ArrowInvalid as error:
        raise UserError(f"{file} is not Parquet ({one_line(error)})") from error
    with table:
        columns = [field] if field in table.schema_arrow.names else None
        for batch in table.iter_batches(batch_size=_ROWS_AT_ONCE, columns=columns):
            yield from batch.to_pylist()


def read_arrays(file: Path, *needed: str) -> dict[str, npt.NDArray[Any]]:
    """The arrays of an `.npz` by name: numbers, no pickled objects.

    Args:
        file: as numpy's `savez` writes it.
        needed: names that it has to hold.

    Raises:
        UserError: it holds something else.
    """
    try:
        with file.open("rb") as opened, zipfile.ZipFile(opened):
            opened.seek(0)
            with np.load(opened, allow_pickle=False) as stored:
                found = {name: stored[name] for name in stored.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(f"{file} holds no arrays of numbers: {one_line(error)[:200]}") from error
    missing = [name for name in needed if name not in found]
    if missing or not all(isinstance(array, np.ndarray) for array in found.values()):
        raise UserError(f"{file} lacks the arrays {', '.join(missing) or 'of numbers'}")
    return found
