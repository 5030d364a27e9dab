"""Figures of README and docs are those of the results files."""

from __future__ import annotations

from functools import cache, partial

import pytest

from benchmarks import figures
from chimera.paths import ROOT

WRITERS = dict(figures.WRITERS)


@cache
def block(name: str) -> str:
    """A block, written once for all tests of a process: some read hundreds of records."""
    return WRITERS[name]()


@pytest.fixture(autouse=True)
def _blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in WRITERS:
        monkeypatch.setitem(figures.WRITERS, name, partial(block, name))


@pytest.mark.parametrize("name", figures.FILES)
def test_figures_are_those_of_the_results(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    assert figures.MARKED.search(text), "no marked figures"
    assert figures.written(text) == text, "write them anew: python -m benchmarks.figures"


def test_a_changed_figure_is_seen() -> None:
    text = (ROOT / "docs/speed.md").read_text(encoding="utf-8")
    changed = text.replace("| chimera, main job, fp32 |", "| chimera, main job, fp32 | 9", 1)
    assert changed != text
    assert figures.written(changed) == text


@pytest.mark.parametrize("name", figures.WRITERS)
def test_no_block_is_a_table_without_rows(name: str) -> None:
    lines = figures.WRITERS[name]().splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert lines
    assert not table or len(table) > 2
