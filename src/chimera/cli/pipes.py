"""Let a command outlive the reader of its output: `python train.py … | head` trains to its end.

When the reader closes the pipe, the rest of the output goes to /dev/null. Everything that counts is
in the files of the run.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO


class Outlasting:
    """A text stream that swallows its output from the moment when nobody reads it.

    Args:
        stream: standard output or standard error; its other methods are kept.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        """Write text; returns its length."""
        with self._kept():
            self.stream.write(text)
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Write what is buffered."""
        with self._kept():
            self.stream.flush()

    @contextlib.contextmanager
    def _kept(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.stream.fileno())  # what is still buffered goes there, too
            os.close(nowhere)


@contextlib.contextmanager
def outlasting_output() -> Iterator[None]:
    """Both standard streams are `Outlasting` inside, and flushed at the end."""
    before = sys.stdout, sys.stderr
    streams = [Outlasting(stream) for stream in before]
    sys.stdout, sys.stderr = streams
    try:
        yield
    finally:
        for stream in streams:
            stream.flush()
        sys.stdout, sys.stderr = before
