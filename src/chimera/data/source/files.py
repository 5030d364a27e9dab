"""Read the files of a user: lines and paragraphs of text, tables, JSON, Parquet, arrays.

Every file that somebody else may have written is read here. It is data, never a program, and one
that holds anything else is refused in one line that names the file and the line or row (`parsing`).
Files but Parquet and arrays may be compressed: their names end in `.gz` or `.zst`. Only
`read_text`, `read_json`, `read_arrays` and lists in JSON hold a whole file in memory.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import os
import re
import stat
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby, islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from chimera.data.source.splits import Split
from chimera.errors import Interrupted, UserError, one_line
from chimera.safe_io import replacing

#: Names of the compressions in pyarrow, by suffix.
COMPRESSED = {".gz": "gzip", ".zst": "zstd"}
TEXT = (".txt", ".text", ".raw", ".tokens")
JSON = (".json", ".jsonl", ".ndjson")
TABLES = (".csv", ".tsv")
PARQUET = ".parquet"
#: Formats of text corpora, by the suffixes of `format_of`.
FORMATS = (*TEXT, *JSON, *TABLES, PARQUET)
#: Code and marked text, read only where the path names the suffix: folders of data have READMEs.
MARKED = (".md", ".rst", ".tex", ".py", ".c", ".h", ".cpp", ".java", ".js", ".ts", ".go", ".rs")
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
_LONGEST = 1 << 27  # bytes of a line; a few bytes of compressed data may hold gigabytes
_LARGEST = 1 << 30  # bytes of a file that is read as a whole
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
    """The split that a folder is named by (`valid/a.txt`), else a file (`wiki.valid.tokens`).

    Args:
        file: relative to the folder that holds the text.
    """
    words = [*reversed(file.parent.parts), *re.split(r"[^a-z]+", file.name.lower())]
    return next((SPLIT_WORDS[word.lower()] for word in words if word.lower() in SPLIT_WORDS), None)


def files_below(folder: Path) -> list[Path]:
    """The files of a folder and of those inside, also behind links, but for hidden ones; sorted.

    Raises:
        UserError: a folder inside cannot be read, or as of `regular`.
    """

    def refuse(error: OSError) -> None:
        raise UserError(f"{error.filename} cannot be read ({error.strerror})") from error

    found: list[Path] = []
    seen: set[str] = set()  # links may lead to a folder again
    for place, folders, names in os.walk(folder, onerror=refuse, followlinks=True):
        real = os.path.realpath(place)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(folder for folder in folders if folder[0] != ".")
        found += [Path(place, name) for name in names if name[0] != "."]
    return regular(found)


def regular(found: Iterable[Path]) -> list[Path]:
    """Files in order; one that links lead to again counts once, under its first name.

    Raises:
        UserError: one is a link to nothing, a pipe or a device.
    """
    files = {os.path.realpath(file): file for file in sorted(found, reverse=True)}
    for file in files.values():
        if not file.is_file():
            kind = "no regular file" if file.exists() else "a link to nothing"
            raise UserError(f"{file} is {kind}; put a file there, or remove it")
    return sorted(files.values())


def format_of(file: Path) -> str:
    """Suffix of the decompressed file, in lower case: `.jsonl` of `a.JSONL.gz`."""
    compressed = file.suffix.lower() in COMPRESSED
    return (Path(file.stem) if compressed else file).suffix.lower()


@contextmanager
def parsing(where: object, kind: str) -> Iterator[None]:
    """Refuse in one line what a library cannot read, whatever exception it raises.

    Too little memory and a missing library are no fault of the data, so these errors pass.

    Args:
        where: file, and line or row, for the message.
        kind: what the file should hold.

    Raises:
        UserError: naming the place and the reason.
    """
    try:
        yield
    except (UserError, Interrupted, MemoryError, ImportError):
        raise
    except Exception as error:  # damaged data raise anything
        if isinstance(error, OSError) and error.errno:
            raise UserError(f"{where} cannot be read ({error.strerror})") from error
        line = getattr(error, "lineno", 1)  # of JSON; a single line of it is named by `where`
        place = f" at line {line}" if line > 1 else ""
        reason = one_line(getattr(error, "msg", None) or error or type(error).__name__)
        raise UserError(f"{where} is not {kind}{place} ({reason[:200]})") from error


@contextmanager
def open_bytes(file: Path) -> Iterator[BinaryIO]:
    """Open a file for reading; files of several gzip members or zstd frames are read to the end.

    Raises:
        UserError: it is no file or cannot be read; the compressed data are damaged or end early.
    """
    suffix = file.suffix.lower()
    with parsing(file, "a whole compressed file" if suffix in COMPRESSED else "readable"):
        if not stat.S_ISREG(file.stat().st_mode):
            raise UserError(f"{file} is no regular file; copy its contents to one")
        with file.open("rb") as raw:
            if suffix in COMPRESSED:
                import pyarrow

                unpacked = pyarrow.CompressedInputStream(raw, COMPRESSED[suffix])
                yield io.BufferedReader(unpacked, 1 << 18)
            else:
                yield raw


def read_text(file: Path) -> str:
    """Read a whole file of UTF-8 text, possibly compressed, without a byte-order mark.

    Raises:
        UserError: the file is not UTF-8, the message names the byte; or it is too large.
    """
    with open_bytes(file) as stream:
        raw = stream.read(_LARGEST + 1)
    if len(raw) > _LARGEST:
        raise UserError(f"{file} is larger than {_LARGEST >> 30} GiB; divide it into several files")
    return _decoded(file, raw, 0, final=True).removeprefix(_BOM)


def read_lines(file: Path, max_bytes: int | None = None) -> Iterator[str]:
    """Read the lines of a file one by one, with their ends and without a byte-order mark.

    Only a newline ends a line.

    Args:
        file: UTF-8 text, possibly compressed.
        max_bytes: read only the whole lines within this many bytes, or the words of the first line
            if it is longer; None reads all.

    Raises:
        UserError: the file is not UTF-8, the message names the byte; or a line is too long.
    """
    position = 0
    longest = _LONGEST if max_bytes is None else min(_LONGEST, max_bytes)
    with open_bytes(file) as stream:
        for number, raw in enumerate(iter(lambda: stream.readline(longest + 1), b""), 1):
            cut = max_bytes is not None and position + len(raw) > max_bytes
            if cut and position:
                return
            if not cut and len(raw) > _LONGEST:
                size = f"{_LONGEST >> 20} MiB"
                raise UserError(f"{file}: line {number} is longer than {size}; break it into lines")
            line = _decoded(file, raw[:max_bytes] if cut else raw, position, final=not cut)
            if cut:
                line = line[: (line.rfind(" ") + 1) or None]
            yield line if position else line.removeprefix(_BOM)
            if cut:
                return
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

    Lines keep their indentation.

    Args:
        file: UTF-8 text, possibly compressed.
        max_bytes: as of `read_lines`.
    """

    def blocks() -> Iterator[Iterator[str]]:
        lines = _bare_lines(file, max_bytes)
        return (block for filled, block in groupby(lines, bool) if filled)

    several = len([None for _ in islice(blocks(), 2)]) == 2
    for block in blocks():
        if several:
            yield "\n".join(block)
        else:
            yield from block


def _bare_lines(file: Path, max_bytes: int | None) -> Iterator[str]:
    """Lines without their ends and blanks there; a carriage return ends one, too."""
    for line in read_lines(file, max_bytes):
        for part in line.rstrip().split("\r"):
            yield part.rstrip()


def read_rows(file: Path) -> Iterator[tuple[int, list[str]]]:
    """The rows of a table that are not empty, with the number of the line where each ends.

    Args:
        file: `.csv`, with commas and quotes; any other is read as TSV, which has no quotes.

    Raises:
        UserError: a quote that does not end, or text behind it.
    """
    if format_of(file) != ".csv":
        # Not splitlines, which also splits at other characters that sentences contain.
        for number, line in enumerate(read_lines(file), 1):
            if text := line.rstrip("\r\n"):
                yield number, text.split("\t")
        return
    csv.field_size_limit(_LONGEST)
    rows = csv.reader(read_lines(file), strict=True)
    while True:
        with parsing(f"{file}: line {rows.line_num + 1}", "CSV"):
            row = next(rows, None)
        if row is None:
            return
        if row:
            yield rows.line_num, row


def read_json(file: Path) -> Any:
    """The value of a JSON file, possibly compressed.

    Raises:
        UserError: it is not JSON, or names a field twice.
    """
    with parsing(file, "JSON"):
        return json.loads(read_text(file), object_pairs_hook=_fields)


def _fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"it names {next(n for n in names if names.count(n) > 1)} twice")
    return found


def json_rows(file: Path, max_bytes: int | None = None) -> Iterator[tuple[str, Any]]:
    """The values of JSON lines or of a list, with their places; the contents decide.

    Args:
        file: possibly compressed; blank lines do not count.
        max_bytes: as of `read_lines`, for JSON lines.

    Raises:
        UserError: a line, or the list, is not JSON.
    """
    with open_bytes(file) as stream:
        beginning = stream.read(BEGINNING).removeprefix(_BOM.encode()).lstrip()
    if beginning.startswith(b"["):
        yield from ((f"{file}: record {n}", row) for n, row in enumerate(read_json(file), 1))
        return
    for number, line in enumerate(read_lines(file, max_bytes), 1):
        if line.strip():
            where = f"{file}: line {number}"
            with parsing(where, "JSON"):
                row = json.loads(line, object_pairs_hook=_fields)
            yield where, row


def _table_rows(file: Path, field: str) -> Iterator[tuple[str, dict[str, str]]]:
    rows = read_rows(file)
    _, names = next(rows, (0, []))
    check_once(field, names, f"{file}: line 1")
    for number, row in rows:
        where = f"{file}: line {number}"
        yield where, by_name(names, row, where)


def check_once(column: str, names: Sequence[str], where: object) -> None:
    """Refuse a table that has two columns of a name.

    Args:
        column: that is read.
        names: of all columns.
        where: file, for the message.

    Raises:
        UserError: it is there more than once.
    """
    if names.count(column) > 1:
        raise UserError(f"{where} names several columns {column}; rename all but one")


def by_name(names: Sequence[str], row: Sequence[str], where: str) -> dict[str, str]:
    """The fields of a row of a table by the names of its columns.

    Args:
        names: of the columns.
        row: may be shorter; what it has beyond the columns must be empty.
        where: file and line, for the message.

    Raises:
        UserError: it has more fields than there are columns: a text that is not quoted.
    """
    if any(row[len(names) :]):
        raise UserError(
            f"{where} has {len(row)} fields, and the table {len(names)} columns; put a text that"
            ' holds a separator into quotes (CSV: "…"), or take the separator out'
        )
    return dict(zip(names, row, strict=False))


def _parquet_rows(file: Path, field: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The rows of a Parquet file with their places; without other columns if it has the field."""
    import pyarrow.parquet

    number = 0
    with (
        parsing(file, "Parquet"),
        pyarrow.parquet.ParquetFile(file, page_checksum_verification=True) as table,
    ):
        names = table.schema_arrow.names
        check_once(field, names, file)
        columns = [field] if field in names else None
        for batch in table.iter_batches(batch_size=_ROWS_AT_ONCE, columns=columns):
            for row in batch.to_pylist():
                number += 1
                yield f"{file}: row {number}", row


def field_texts(
    file: Path, field: str, max_bytes: int | None = None, *, key: str = "data.field="
) -> Iterator[str]:
    """One text field of a file of JSON (lines or a list), CSV, TSV or Parquet.

    Args:
        file: its suffix decides the format.
        field: name of the field; of a table, a name in its first line.
        max_bytes: as of `read_lines`, for JSON lines.
        key: that names the field, for messages.

    Raises:
        UserError: a file of another format, or a row without text in the field; the message names
            the row.
    """
    kind = format_of(file)
    if kind == PARQUET:
        rows: Iterator[tuple[str, Any]] = _parquet_rows(file, field)
    else:
        rows = _table_rows(file, field) if kind in TABLES else json_rows(file, max_bytes)
    for where, row in rows:
        yield text_in(row, field, where, key)


def text_in(row: object, field: str, where: str, key: str = "") -> str:
    """The text in a field of a row.

    Args:
        row: of a file or a data set.
        field: name of the field.
        where: file and row, for the message.
        key: that has the name of the field, for the message.

    Raises:
        UserError: it has none.
    """
    text = row.get(field) if isinstance(row, dict) else None
    if isinstance(text, str):
        # JSON can name halves of UTF-16 pairs, which are no text; each becomes a question mark.
        return text.encode(errors="replace").decode()
    if isinstance(row, dict) and field in row:
        why = f"it holds {one_line(text)[:100]}"
    else:
        names = one_line(", ".join(map(str, row)))[:200] if isinstance(row, dict) else ""
        why = f"its fields are {names or 'none'}"
    raise UserError(f"{where} has no text in {key}{field}; {why}")


def read_arrays(file: Path, *needed: str) -> dict[str, npt.NDArray[Any]]:
    """The arrays of an `.npz` by name: numbers, no pickled objects.

    Args:
        file: as numpy's `savez` writes it.
        needed: names that it has to hold.

    Raises:
        UserError: it holds something else.
    """
    with parsing(file, "an archive of arrays of numbers"), open_bytes(file) as opened:
        with zipfile.ZipFile(opened) as archive:
            if sum(member.file_size for member in archive.infolist()) > _LARGEST:
                raise UserError(f"{file} holds more than {_LARGEST >> 30} GiB")
        opened.seek(0)
        try:
            with np.load(opened, allow_pickle=False) as stored:
                found = {name: stored[name] for name in stored.files}
        except MemoryError as error:  # the archive is small enough, so a header lies
            raise UserError(f"{file} is damaged ({one_line(error)})") from error
    missing = [name for name in needed if name not in found]
    if missing or not all(isinstance(array, np.ndarray) for array in found.values()):
        raise UserError(f"{file} lacks the arrays {', '.join(missing) or 'of numbers'}")
    return found


def save_arrays(file: Path, **arrays: Any) -> None:
    """Write arrays by name to an `.npz`, which is whole or absent also after a crash."""
    with replacing(file) as temporary, temporary.open("wb") as stream:
        np.savez_compressed(stream, **arrays)
        stream.flush()
        os.fsync(stream.fileno())
