"""Names and paths: of runs, of reports, of a graft's base model. None leads elsewhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chimera.api import graft
from chimera.cli.train import main as train
from chimera.config.compose import compose, plain
from chimera.errors import UserError
from chimera.rundir.directory import RunDir
from tests.safety.kit import TEXT, line

NAMES = ["../../x", "a/b", "/tmp/x", "..\\x", "a b", "a\nb", "", "$HOME", "~", "a;b", "x" * 201]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("where", ["", "run_dir"])
def test_a_run_is_called_by_a_name_and_not_by_a_path(
    name: str,
    where: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    root = tmp_path / "a" / "b" / "runs"
    monkeypatch.setenv("CHIMERA_RUNS", str(root))
    (tmp_path / "text.txt").write_text(TEXT * 100)
    quoted = json.dumps(name).replace("$", "\\$")
    more = [f"run_dir={tmp_path}/here"] if where else []
    assert train([*line(tmp_path), f"name={quoted}", *more]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "name=" in err
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["text.txt"]


@pytest.mark.parametrize("name", ["mlm-a.b+c_d", "ünicode", "..", "1"])
def test_names_that_are_fine(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHIMERA_RUNS", str(tmp_path))
    config = plain(compose([f"name='{name}'"]))
    assert RunDir.of(config).path.parent == tmp_path
    assert RunDir.of(config).path.name.startswith(f"{name}-")


def test_a_grafts_base_is_named_by_the_user(tmp_path: Path) -> None:
    about = {"base": "owner/evil", "dtype": "float32", "order": 2}
    (tmp_path / "liza.json").write_text(json.dumps(about))
    with pytest.raises(UserError, match=r"graft.load\(.*, base=.*owner/evil"):
        graft.load(tmp_path)
    (tmp_path / "liza.json").write_text(json.dumps({**about, "dtype": "hub"}))
    with pytest.raises(UserError, match="dtype"):
        graft.load(tmp_path, base=tmp_path)
    (tmp_path / "liza.json").write_text(json.dumps({**about, "model": "owner/evil"}))
    with pytest.raises(UserError, match="model"):
        graft.load(tmp_path, base=tmp_path)
