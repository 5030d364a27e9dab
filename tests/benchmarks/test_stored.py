"""Blocks of pages read records that count, and stop at one that was changed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from benchmarks.stored import records

from chimera.errors import UserError
from chimera.paths import ROOT


def test_a_changed_record_stops_the_page_in_place_of_changing_it(tmp_path: Path) -> None:
    name = min(path.name for path in (ROOT / "store").glob("mlm-*"))
    shutil.copytree(ROOT / "store" / name, tmp_path / name)
    [(config, record)] = records("mlm-", tmp_path)
    assert config["seed"] == record["seed"]
    file = tmp_path / name / "run.json"
    file.write_text(file.read_text().replace('"seed"', '"seed" '))
    assert not list(records("profile-", tmp_path))
    with pytest.raises(UserError, match="is not what was stored"):
        list(records("mlm-", tmp_path))
