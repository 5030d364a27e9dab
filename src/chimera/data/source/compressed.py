"""Read the bytes of a file, decompressed if its name ends in `.gz` or `.zst`."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from chimera.errors import UserError

COMPRESSED = (".gz", ".zst")


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
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise _damaged(file, error) from error
    except OSError as error:  # pyarrow raises one without a number for damaged data
        if file.suffix not in COMPRESSED or error.errno is not None:
            raise
        raise _damaged(file, error) from error


def _opened(file: Path) -> BinaryIO:
    if file.suffix == ".gz":
        return cast(BinaryIO, gzip.open(file))
    if file.suffix == ".zst":
        import pyarrow

        raw = pyarrow.CompressedInputStream(pyarrow.OSFile(str(file)), "zstd")
        return io.BufferedReader(raw, 1 << 18)
    return file.open("rb")


def _damaged(file: Path, error: Exception) -> UserError:
    return UserError(f"{file} is damaged ({' '.join(str(error).split())}); fetch it again")
