"""The index of runs gives what composing gives, and is never trusted over changed files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from chimera.config.compose import compose, plain
from chimera.rundir.directory import RunDir
from chimera.rundir.identity import identity
from chimera.rundir.index import FILE, RunIndex

OVERRIDES = ["scale=smoke", "seed=3"]


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CHIMERA_RUNS", str(tmp_path / "runs"))
    (tmp_path / "runs").mkdir()
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "a.yaml").write_text("a: 1")
    return tmp_path


def opened(root: Path) -> RunIndex:
    return RunIndex([root / "conf"])


def never(overrides: list[str]) -> dict[str, Any]:
    raise AssertionError(overrides)


def finished(root: Path) -> tuple[dict[str, Any], RunDir]:
    """A finished run that the index knows."""
    config = plain(compose(OVERRIDES))
    directory = RunDir.of(config)
    directory.start(config, OVERRIDES)
    directory.write_status("DONE")
    index = opened(root)
    index.config(OVERRIDES, lambda _: config)
    index.save()
    return config, directory


def test_a_known_command_line_is_not_composed_again(root: Path) -> None:
    config, directory = finished(root)
    index = opened(root)
    found, digits = index.config(OVERRIDES[::-1], never)  # the order has no effect
    assert (found, digits) == (config, identity(config))
    assert index.directory(found, digits).path == directory.path
    assert index.finished(found, directory)


def test_a_missing_or_broken_index_is_composed_again(root: Path) -> None:
    config, _ = finished(root)
    for text in (None, "{", "[]", '{"state": 1}'):
        (root / "runs" / FILE).unlink()
        if text is not None:
            (root / "runs" / FILE).write_text(text)
        calls: list[list[str]] = []
        index = opened(root)
        assert index.config(OVERRIDES, lambda o, c=calls: c.append(o) or config)[0] == config  # type: ignore[misc]
        assert calls == [OVERRIDES]
        index.save()


def test_a_changed_configuration_makes_it_stale(root: Path) -> None:
    finished(root)
    (root / "conf" / "a.yaml").write_text("a: 22")
    with pytest.raises(AssertionError):
        opened(root).config(OVERRIDES, never)


def test_an_unfinished_run_is_not_trusted(root: Path) -> None:
    config, directory = finished(root)
    directory.write_status("STOPPED")
    assert not opened(root).finished(config, directory)
    directory.write_status("DONE")
    assert opened(root).finished(config, directory)
    assert not opened(root).finished(config | {"overwrite": True}, directory)
    named = config | {"run_dir": str(directory.path)}  # its configuration has to be compared
    assert not opened(root).finished(named, directory)


def test_a_run_under_another_name_and_an_extended_run_are_found_as_without_the_index(
    root: Path,
) -> None:
    config, directory = finished(root)
    other = directory.path.with_name(f"mine-{identity(config)}")
    directory.path.rename(other)
    assert opened(root).directory(config, identity(config)).path == other
    with (other / "config.yaml").open("a") as file:
        file.write("extended: []\n")
    assert opened(root).directory(config, identity(config)).path == RunDir.of(config).path != other


def test_what_depends_on_other_files_is_composed_each_time(root: Path) -> None:
    for config in ({"init_from": "runs/x"}, {"ckpt_path": "x"}, {"task": {"teacher": "x"}}):
        index = opened(root)
        index.add(["seed=1"], config)
        index.save()
    index.add(["data.path=${oc.env:HOME}"], {})
    index.save()
    assert not (root / "runs" / FILE).exists()
    index.add(["+a/b=c", "seed=1"], plain(compose(OVERRIDES)))
    index.save()
    assert len(json.loads((root / "runs" / FILE).read_text())["composed"]) == 1
