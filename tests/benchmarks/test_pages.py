"""The committed pages are those that their commands write from the committed records."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from benchmarks import cards, effects, equal
from chimera.paths import EXPERIMENTS, ROOT

DOCS = ROOT / "docs"
#: Tables at equal steps, FLOPs and seconds.
EQUAL = sorted(EXPERIMENTS.glob("*/*/results/*/equal/equal.md"))


@pytest.fixture(autouse=True)
def the_repos_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHIMERA_RECORDS", str(ROOT / "experiments"))


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, where no run is but the records of the store."""
    monkeypatch.setenv("CHIMERA_RUNS", str(tmp_path / "no-runs"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_the_page_of_effects_is_written_by_the_command_that_it_names(tmp_path: Path) -> None:
    page = (DOCS / "effects.md").read_text(encoding="utf-8")
    command = re.search(r"Written by `python -m benchmarks effects (.*) to=docs`", page)
    assert command
    effects.main([*shlex.split(command[1]), f"to={tmp_path}"])
    assert (tmp_path / "effects.md").read_text(encoding="utf-8") == page


@pytest.mark.slow
def test_cards_are_written_from_the_records(tmp_path: Path) -> None:
    cards.main([f"to={tmp_path}"])
    written = [path for path in tmp_path.rglob("*") if path.suffix in (".md", ".svg")]
    assert len(written) > 16
    for path in written:
        committed = DOCS / path.relative_to(tmp_path)
        assert committed.read_bytes() == path.read_bytes(), committed.name


@pytest.mark.slow
@pytest.mark.parametrize("file", EQUAL, ids=lambda file: "-".join(file.parts[-6:-2]))
def test_equalities_are_written_from_the_records_by_the_command_that_they_name(
    file: Path, elsewhere: Path
) -> None:
    page = file.read_text(encoding="utf-8")
    (command,) = re.findall(r"^Written by `python -m benchmarks equal (.*?)`", page, re.MULTILINE)
    equal.main([*shlex.split(command), f"out={elsewhere / 'new'}"])
    for name in ("equal.md", "equal.csv"):
        written = (elsewhere / "new" / name).read_text(encoding="utf-8")
        assert file.with_name(name).read_text(encoding="utf-8") == written, name
