"""The picture of README is that of the results files."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import picture


@pytest.mark.slow
def test_the_picture_is_that_of_the_results(tmp_path: Path) -> None:
    picture.main(tmp_path / "picture.svg")
    drawn = (tmp_path / "picture.svg").read_bytes()
    assert b"<svg" in drawn
    assert drawn == picture.FILE.read_bytes(), "draw it anew: python -m benchmarks.picture"
