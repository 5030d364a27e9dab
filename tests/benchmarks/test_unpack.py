"""Runs on packed documents count as runs on the default corpus, if the text is this machine's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks.gpu import unpack

from chimera.config.compose import compose, plain
from chimera.errors import UserError
from chimera.rundir.identity import identity
from chimera.rundir.store import Store
from tests.rundir.test_store import WORDS, a_run

HERE = {"a.py": "one", "b.py": "two"}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A finished run on `documents.json` below the current folder, which is this machine's text."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CHIMERA_STORE", str(tmp_path / "store"))
    for name in ("documents.json", "harvest.json"):
        (tmp_path / name).write_text(json.dumps(HERE))
    monkeypatch.setattr(unpack, "cached_harvest", lambda root: tmp_path / "harvest.json")
    unpack._same.cache_clear()
    return a_run(tmp_path / "runs", [*WORDS, "data.documents=documents.json"])


def test_it_counts_for_the_configuration_without_the_key(run: Path) -> None:
    config = plain(compose(WORDS))
    assert identity(config) not in run.name
    assert unpack.main([str(run.parent)]) == 0
    found = Store().find(config, identity(config))
    assert found is not None
    assert found.record()["identity"] == identity(config)
    assert found.record()["metrics"] == {"val/perplexity": 12.5, "val/loss": 2.5}
    assert (found.path / "overrides.txt").read_text().split() == WORDS
    assert unpack.stored(run) == (found.path, False)


def test_other_text_is_refused(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("documents.json").write_text(json.dumps(HERE | {"b.py": "three"}))
    assert unpack.main([str(run)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not Path("store").exists()


def test_a_run_without_the_key_and_no_folder_are_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"names no data\.documents"):
        unpack.stored(a_run(tmp_path / "others"))
    assert unpack.main([]) == 2


def test_an_unfinished_run_is_left_out(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "status.json").write_text(json.dumps({"state": "RUNNING"}))
    assert unpack.main([str(run.parent)]) == 0
    assert "RUNNING, left out" in capsys.readouterr().out
    assert not Path("store").exists()
