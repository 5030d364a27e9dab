"""Records of the same row that are of other settings or numerics: one line, and no harm."""

from __future__ import annotations

from pathlib import Path

import pytest

from chimera.config.compose import compose, plain
from chimera.rundir.identity import identity
from chimera.rundir.keep import add
from chimera.rundir.store import Store
from tests.rundir.test_store import WORDS, a_run


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHIMERA_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("CHIMERA_RUNS", str(tmp_path / "runs"))


ROW = ["+bitnet_qdyt/norms=qdyt", "scale=smoke"]


def test_a_record_of_other_settings_of_the_row_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The row's YAML has changed since: the records are of the same choices and other rates."""
    for rate in (0.5, 0.25):
        add(a_run(tmp_path / "runs", [*ROW, f"optim.lr={rate}"]))
    config, found = plain(compose(ROW)), Store()
    assert found.find(config, identity(config)) is None
    found.tell()
    line = capsys.readouterr().err
    assert line.startswith("not counted: 2 records in ")
    assert "optim.lr=0.25 there" in line or "optim.lr=0.5 there" in line
    assert line.count("\n") == 1


def test_records_of_a_sweep_that_goes_on_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The rate that is looked for first is not there; the other one's record is no other's."""
    for words in (WORDS, ROW):
        add(a_run(tmp_path / "runs", [*words, "optim.lr=0.5"]))
        found = Store()
        for rate, there in ((0.25, False), (0.5, True)):
            config = plain(compose([*words, f"optim.lr={rate}"]))
            assert (found.find(config, identity(config)) is not None) == there
        found.tell()
    assert capsys.readouterr().err == ""


def test_a_record_of_other_numerics_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record, _ = add(a_run(tmp_path / "runs"))
    config = plain(compose(WORDS)) | {"numerics": 3}  # of a later version
    found = Store()
    assert found.find(config, identity(config)) is None
    found.tell()
    assert f"{record.name}: numerics 2 there, 3 here" in capsys.readouterr().err
