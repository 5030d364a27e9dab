"""A process that reads configuration from more folders for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from chimera.config.groups import add, forget
from chimera.paths import VARIABLE


@contextmanager
def folders(monkeypatch: pytest.MonkeyPatch, *paths: Path) -> Iterator[None]:
    """With these folders as `--config-dir` adds them, and without them afterwards."""
    with monkeypatch.context() as patch:
        patch.setenv(VARIABLE, "")
        patch.setattr("sys.path", [*__import__("sys").path])
        for path in paths:
            add(str(path))
        forget()
        try:
            yield
        finally:
            patch.undo()
            forget()
