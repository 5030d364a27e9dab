"""Blocks of pages read records that count, and stop at one that was changed."""

from __future__ import annotations

import csv
import json
import re
import shutil
from pathlib import Path

import pytest
from benchmarks.stored import records

from chimera.errors import UserError
from chimera.paths import ROOT

#: Commits of copied trees on a machine with a GPU, which lacked or had files that training does not
#: read, so that git called them changed; docs/results.md says so beside the results.
COPIED = {
    "0786def95c1c05db8d7e4140de097cf4fa076c65": "without docs, notebooks, results and run store",
    "1a2fdb66c72c21b35f937c15bc35b6a8a17e4080": "with two records that were not committed yet",
}


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


def test_every_record_is_of_a_run_that_trained_on_committed_code() -> None:
    """Neither invented by a test nor of code that nobody can check out."""
    folders = sorted(path for path in (ROOT / "store").iterdir() if path.is_dir())
    assert len(folders) > 1000
    for folder in folders:
        about = json.loads((folder / "environment.json").read_text())
        git = about["git"]
        copied = about["gpu"] is not None and git["commit"] in COPIED
        assert git["changed"] is copied, folder.name
        assert re.fullmatch(r"[0-9a-f]{40}", git["commit"]), folder.name
        assert len(set(git["commit"])) > 1, folder.name
        record = json.loads((folder / "run.json").read_text())
        assert record["wall_seconds"] > 0, folder.name
        assert record["tokens_per_second"] > 0, folder.name
        with (folder / "steps.csv").open(encoding="utf-8", newline="") as opened:
            *_, last = csv.DictReader(opened)
        assert int(last["global_step"]) == record["steps"] > 0, folder.name
