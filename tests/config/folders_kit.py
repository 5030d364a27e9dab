"""A process that reads configuration from more folders for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from chimera.config import choices, config_folders, groups


def _forget() -> None:
    config_folders.roots.cache_clear()
    groups.groups.cache_clear()
    choices.select.cache_clear()
    choices.merged_files.cache_clear()


@contextmanager
def folders(monkeypatch: pytest.MonkeyPatch, *paths: Path) -> Iterator[None]:
    """With these folders as `--config-dir` adds them, and without them afterwards."""
    with monkeypatch.context() as patch:
        patch.setenv(config_folders.VARIABLE, "")
        patch.setattr("sys.path", [*__import__("sys").path])
        for path in paths:
            config_folders.add(str(path))
        _forget()
        try:
            yield
        finally:
            patch.undo()
            _forget()
