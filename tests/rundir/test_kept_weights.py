"""A record with weights: others start from it where the run is gone, and as from the run itself."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

import chimera as ch
from chimera.cli.eval import main as evaluate
from chimera.cli.export import main as export
from chimera.cli.store import main as store_main
from chimera.cli.train import main as train
from chimera.config.compose import compose, plain
from chimera.config.init_from import check_present, source
from chimera.errors import UserError
from chimera.model.restore import read
from chimera.rundir.directory import RunDir
from chimera.rundir.identity import identity
from chimera.rundir.keep import add
from chimera.rundir.kept_weights import TOKENIZER, WEIGHTS, weights_of
from chimera.rundir.store import STATUS, check
from chimera.train.restore import restore
from tests.rundir.test_store import a_run

SMALL = [
    "scale=smoke",
    "logger=none",
    "trainer.max_steps=2",
    "trainer.val_check_interval=1",
    "model.depth=1",
    "name=body",
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, below runs/ of a folder."""
    root = tmp_path_factory.mktemp("body")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        patch.setenv("CHIMERA_RUNS", "runs")
        patch.setenv("CHIMERA_STORE", "store")
        assert train(SMALL) == 0
    (run,) = (root / "runs").iterdir()
    return run


@pytest.fixture
def place(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the run in runs/ of the current folder, whose store is empty."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CHIMERA_RUNS", "runs")
    monkeypatch.setenv("CHIMERA_STORE", "store")
    return Path(shutil.copytree(trained, Path("runs") / trained.name, symlinks=True))


def test_others_start_from_it_as_from_the_run(place: Path) -> None:
    start = [f"init_from={place}", "scale=smoke", "seed=1"]
    before, model = plain(compose(start)), read(place / "checkpoints" / "best.ckpt")
    record, new = add(place, weights=True)
    assert new
    shutil.rmtree(place)
    check_present(plain(compose(start)))
    assert identity(plain(compose(start))) == identity(before)
    for named in (str(place), str(record)):
        found = source(named)
        assert found is not None
        assert found.tokenizer.is_dir()
        kept = read(found.weights)
        assert kept.keys() == model.keys()
        assert all(torch.equal(kept[name], model[name]) for name in model)
    assert train([*start, "logger=none", "trainer.max_steps=1", "name=next"]) == 0
    (following,) = Path("runs").glob("next-*")
    assert RunDir(following).status()["state"] == "DONE"


def test_it_is_exported_and_loaded_like_a_run(place: Path) -> None:
    best = read(place / "checkpoints" / "best.ckpt")
    record, _ = add(place, weights=True)
    before = {file: file.read_bytes() for file in record.rglob("*") if file.is_file()}
    shutil.rmtree(place)
    assert export([f"run={record}", "to=exported"]) == 0
    for there in (record, Path("exported")):
        model = ch.load(there).model.state_dict()
        assert all(torch.equal(model[name], best[name]) for name in best), there
    assert {file: file.read_bytes() for file in record.rglob("*") if file.is_file()} == before


def test_what_it_cannot_serve_is_said(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record, _ = add(place, weights=True)
    assert evaluate([f"run={record}"]) == 2
    assert "its weights serve init_from=, generate and export" in capsys.readouterr().err
    with pytest.raises(UserError, match=r"best weights only, not last; say checkpoint=best"):
        restore(RunDir(record), "last")
    (record / WEIGHTS).write_bytes(b"damaged")
    assert export([f"run={record}", f"to={tmp_path / 'exported'}"]) == 2
    assert "is not what was stored" in capsys.readouterr().err
    assert not (tmp_path / "exported").exists()


def test_a_record_without_weights_is_not_exported(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record, _ = add(place)
    assert export([f"run={record}", "to=exported"]) == 2
    assert "not a run; train it again" in capsys.readouterr().err


def test_without_weights_the_line_says_what_trains_it(place: Path) -> None:
    record, _ = add(place)
    shutil.rmtree(place)
    for named in (place, record):
        with pytest.raises(UserError, match=r"only the record is here.*train it first:.*name=body"):
            check_present(plain(compose([f"init_from={named}", "scale=smoke"])))


def test_weights_are_added_and_never_dropped_in_silence(place: Path) -> None:
    record, _ = add(place)
    assert add(place, weights=True) == (record, True)
    assert add(place, weights=True) == add(place) == (record, False)
    about = json.loads((place / "run.json").read_text())
    about["metrics"]["val/loss"] += 1.0
    (place / "run.json").write_text(json.dumps(about))
    with pytest.raises(UserError, match="overwrite=true replaces it"):
        add(place, weights=True)
    with pytest.raises(UserError, match=r"has weights; weights=true replaces them, too"):
        add(place, replace=True)
    assert add(place, replace=True, weights=True) == (record, True)
    assert weights_of(check(record)) == record / WEIGHTS


@pytest.mark.parametrize("damage", ["changed", "missing", "link", "more", "unnamed"])
def test_damage_is_found_before_anything_starts(place: Path, damage: str) -> None:
    record, _ = add(place, weights=True)
    shutil.rmtree(place)
    file = record / WEIGHTS
    if damage == "changed":
        file.write_bytes(file.read_bytes()[:-1] + b"x")
    elif damage == "missing":
        file.unlink()
    elif damage == "link":
        file.rename(file.with_name("moved"))
        file.symlink_to("moved")
    elif damage == "more":
        (record / TOKENIZER / "more.json").write_text("{}")
    else:
        status = json.loads((record / STATUS).read_text())
        del status["stored"]["weights"][WEIGHTS]
        (record / STATUS).write_text(json.dumps(status))
    with pytest.raises(UserError, match=r"(was|were) stored"):
        compose([f"init_from={place}", "scale=smoke"])


def test_what_cannot_be_kept_is_refused(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert store_main(["add", "weights=true"]) == 2
    assert store_main(["add", "runs", "weights=true"]) == 2
    assert "named one by one" in capsys.readouterr().err
    bare = a_run(Path("others"))
    assert store_main(["add", str(bare), "weights=true"]) == 2
    assert "has no best checkpoint" in capsys.readouterr().err
    (place / "body").mkdir()
    with pytest.raises(UserError, match="body of another library"):
        add(place, weights=True)
    assert not list(Path("store").glob("*/run.json"))
    shutil.rmtree(place / "body")
    assert store_main(["add", str(place), "weights=true"]) == 0
    assert "1 added" in capsys.readouterr().out
