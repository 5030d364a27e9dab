"""The directory of a run: its name, its files, and that it is never half written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chimera.check import plain
from chimera.compose import ROOT, compose
from chimera.errors import UserError
from chimera.record import RunDir, environment, flat, identity, write_atomic


def config(*overrides: str) -> dict[str, object]:
    return plain(compose(list(overrides)))


def test_the_directory_follows_from_what_is_computed() -> None:
    assert identity(config()) == identity(config())
    assert identity(config()) != identity(config("seed=1"))
    assert identity(config()) != identity(config("optim.lr=1e-3"))
    assert identity(config()) != identity(config("mixer=gqa"))
    for cosmetic in (
        "logger=none",
        "name=x",
        "run_dir=/x",
        "data.num_workers=2",
        "data.cache_dir=/x",
    ):
        assert identity(config()) == identity(config(cosmetic)), cosmetic
    found = RunDir.of(config("mixer=gqa")).path
    assert found.parent == ROOT / "runs"
    assert found.name.startswith("mlm-gqa-none-layernorm-")


def test_run_dir_names_it(tmp_path: Path) -> None:
    assert RunDir.of(config(f"run_dir={tmp_path}")).path == tmp_path


def test_a_directory_of_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(UserError, match="other files"):
        RunDir(tmp_path).check()
    (tmp_path / "a").mkdir()
    RunDir(tmp_path / "a").check()  # empty: fine
    RunDir(tmp_path / "new").check()


def test_an_atomic_write_leaves_the_old_text_when_it_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.json"
    write_atomic(file, "old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="No space"):
        write_atomic(file, "new")
    assert file.read_text() == "old"


def test_environment_says_what_it_ran_on() -> None:
    found = environment()
    assert found["packages"]["torch"]
    assert found["processor"]
    json.dumps(found)


def test_flat_keys() -> None:
    assert flat({"a": {"b": 1, "c": {}}, "d": None}) == {"a.b": 1, "a.c": {}, "d": None}
