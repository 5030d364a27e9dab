"""Runs that an older commit left behind go on under this code: resumed, tested again, shown.

Their directories are `tests/fixtures/old_run`, made by `tests.golden.old_run`. Command lines and
paths in them are relative, so they are copied to a folder in which every process then runs.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from tests.golden import lanes
from tests.golden.combinations import ROOT
from tests.golden.old_run import FOLDER, JUDGE, KILLED, LINE, STEPS, jobs, numbers

EXPECTED: dict[str, Any] = json.loads((FOLDER / "expected.json").read_text(encoding="utf-8"))
SAME_MACHINE = all(EXPECTED[key] == value for key, value in lanes.machine().items())


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("old") / "run"


@pytest.fixture(scope="module")
def found(place: Path) -> dict[str, dict[str, Any]]:
    """What this code makes of them; the folder is a copy, links and all."""
    return lanes.Lane("old run", ROOT, place, FOLDER, jobs()).results()


def said(found: dict[str, Any]) -> dict[str, float]:
    """What eval.py computed, without what the run had recorded."""
    printed = numbers(found)["eval"]
    assert printed is not None, found.get("log")
    return {k: v["now"] for k, v in printed.items() if isinstance(v, dict)}


def test_the_command_lines_are_those_that_made_it() -> None:
    assert EXPECTED["killed"] == LINE
    assert EXPECTED["finished"] == JUDGE
    for run, line in (("killed", LINE), ("finished", JUDGE)):
        assert (FOLDER / run / "overrides.txt").read_text().split("\n")[:-1] == line


def test_nothing_names_a_place_of_a_machine() -> None:
    for file in FOLDER.rglob("*"):
        if file.suffix in {".yaml", ".json", ".txt", ".csv"}:
            text = file.read_text(encoding="utf-8")
            assert not any(word in text for word in ("/work", "/tmp", "/home", "/root")), file


def test_a_killed_run_goes_on_at_its_checkpoint(
    found: dict[str, dict[str, Any]], place: Path
) -> None:
    resumed = found["resumed"]
    assert resumed["codes"] == [0, 0], resumed.get("log")
    assert "resuming from" in (place / "resumed.log.txt").read_text(encoding="utf-8")
    with (FOLDER / "killed" / "steps.csv").open(newline="", encoding="utf-8") as file:
        before = [row["loss"] for row in csv.DictReader(file)]
    losses = resumed["steps"]["loss"]
    assert losses[:KILLED] == before[:KILLED]  # what was trained then is not trained again
    assert len(losses) == STEPS
    assert resumed["facts"]["identity"] == EXPECTED["identity"]
    status = json.loads((place / "killed" / "status.json").read_text(encoding="utf-8"))
    assert status["state"] == "DONE"


@pytest.mark.skipif(not SAME_MACHINE, reason="recorded on another processor or torch")
@pytest.mark.parametrize("name", ["as killed", "finished", "resumed"])
def test_the_numbers_are_those_of_the_old_code(name: str, found: dict[str, dict[str, Any]]) -> None:
    assert numbers(found[name]) == EXPECTED["found"][name]


def test_the_old_code_came_to_the_uninterrupted_run() -> None:
    resumed, whole = (EXPECTED["found"][name] for name in ("resumed", "uninterrupted"))
    assert [resumed[k] for k in ("loss", "metrics", "weights")] == [
        whole[k] for k in ("loss", "metrics", "weights")
    ]


@pytest.mark.parametrize("name", ["as killed", "finished"])
def test_the_final_test_can_be_repeated(name: str, found: dict[str, dict[str, Any]]) -> None:
    now, then = said(found[name]), EXPECTED["found"][name]["eval"]
    assert found[name]["codes"][-1] == 0
    assert set(now) == {key for key in then if "/" in key}
    for key, value in now.items():  # activations are rounded: another machine may round one apart
        assert value == pytest.approx(then[key]["now"], rel=0.05), key
    assert numbers(found[name])["weights"] == EXPECTED["found"][name]["weights"]


def test_a_finished_run_is_shown_and_left_alone(
    found: dict[str, dict[str, Any]], place: Path
) -> None:
    assert "done already" in (place / "finished.log.txt").read_text(encoding="utf-8")
    for name in ("run.json", "steps.csv", "config.yaml", "checkpoints/last.ckpt"):
        assert (place / "finished" / name).read_bytes() == (FOLDER / "finished" / name).read_bytes()
    assert (FOLDER / "finished" / "checkpoints" / "last.ckpt").is_symlink()
