"""Runs that older code left behind, under this code.

Those of numerics 1 are read, tested and shown, but not resumed; one of numerics 2 goes on.

Their directories are `tests/fixtures/old_run`, made by `tests.golden.old_run`. Command lines and
paths in them are relative, so they are copied to a folder in which every process then runs.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chimera.rundir.identity import NUMERICS
from tests import forks
from tests.golden import lanes
from tests.golden.combinations import ROOT
from tests.golden.old_run import FOLDER, JUDGE, KILLED_2, LINE, LINE_2, STEPS_2, jobs, numbers

EXPECTED: dict[str, Any] = json.loads((FOLDER / "expected.json").read_text(encoding="utf-8"))
EXPECTED_2: dict[str, Any] = json.loads((FOLDER / "expected_2.json").read_text(encoding="utf-8"))
LIMITED = {"ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY"} & os.environ.keys()
SAME_MACHINE = not LIMITED and all(EXPECTED_2[key] == v for key, v in lanes.machine().items())


class Forked(lanes.Lane):
    """A lane whose server is a fork, since it has the code of this checkout."""

    def start(self, file: str, folder: Path, environment: dict[str, str]) -> Callable[[], int]:
        serve = lanes.HERE / "serve.py"
        code = f"import runpy, sys\nsys.path.insert(0, {str(lanes.HERE)!r})\n"
        code += f"sys.argv[1:] = [{file!r}]\nrunpy.run_path({str(serve)!r}, run_name='__main__')"
        return lambda: forks.run("-c", code, cwd=folder, env=environment).returncode


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("old") / "run"


@pytest.fixture(scope="module")
def found(place: Path) -> dict[str, dict[str, Any]]:
    """What this code makes of them; the folder is a copy, links and all."""
    return Forked("old run", ROOT, place, FOLDER, jobs()).results()


def said(found: dict[str, Any]) -> dict[str, float]:
    """What eval.py computed, without what the run had recorded."""
    printed = numbers(found)["eval"]
    assert printed is not None, found.get("log")
    return {k: v["now"] for k, v in printed.items() if isinstance(v, dict)}


def test_the_command_lines_are_those_that_made_it() -> None:
    assert EXPECTED["killed"] == LINE
    assert EXPECTED["finished"] == JUDGE
    assert EXPECTED_2["killed"] == LINE_2
    for run, line in (("killed", LINE), ("finished", JUDGE), ("killed_2", LINE_2)):
        assert (FOLDER / run / "overrides.txt").read_text().split("\n")[:-1] == line


def test_nothing_names_a_place_of_a_machine() -> None:
    for file in FOLDER.rglob("*"):
        if file.suffix in {".yaml", ".json", ".txt", ".csv"}:
            text = file.read_text(encoding="utf-8")
            assert not any(word in text for word in ("/work", "/tmp", "/home", "/root")), file


def test_an_unfinished_run_of_older_numerics_is_not_resumed(
    found: dict[str, dict[str, Any]], place: Path
) -> None:
    assert found["resumed"]["codes"] == [2, 0]  # refused, then evaluated
    # The log has the evaluation, too: Lightning warns where Slurm is installed.
    log = (place / "resumed.log.txt").read_text(encoding="utf-8").splitlines()
    (said,) = (line for line in log if line.startswith("error: "))
    assert said == log[0]
    assert "holds an unfinished run of numerics 1, and this version computes numerics" in said
    assert "name another run_dir, start over in this one with overwrite=true, or resume" in said
    for name in ("status.json", "steps.csv", "config.yaml", "checkpoints/rolling-150.ckpt"):
        assert (place / "killed" / name).read_bytes() == (FOLDER / "killed" / name).read_bytes()


def test_a_killed_run_goes_on_at_its_checkpoint(
    found: dict[str, dict[str, Any]], place: Path
) -> None:
    resumed = found["resumed 2"]
    assert resumed["codes"] == [0, 0], resumed.get("log")
    assert "resuming from" in (place / "resumed 2.log.txt").read_text(encoding="utf-8")
    with (FOLDER / "killed_2" / "steps.csv").open(newline="", encoding="utf-8") as file:
        before = [row["loss"] for row in csv.DictReader(file)]
    losses = resumed["steps"]["loss"]
    assert losses[:KILLED_2] == before[:KILLED_2]  # what was trained then is not trained again
    assert len(losses) == STEPS_2
    wanted = [float(loss) for loss in EXPECTED_2["found"]["loss"]]
    assert [float(loss) for loss in losses] == pytest.approx(wanted, rel=1e-3)
    status = json.loads((place / "killed_2" / "status.json").read_text(encoding="utf-8"))
    assert status["state"] == "DONE"


@pytest.mark.skipif(not SAME_MACHINE, reason="recorded on another processor or torch")
def test_its_numbers_are_those_of_the_run_that_was_never_killed(
    found: dict[str, dict[str, Any]],
) -> None:
    resumed = numbers(found["resumed 2"])
    for part in ("loss", "metrics", "weights"):
        assert resumed[part] == EXPECTED_2["found"][part], part


@pytest.mark.parametrize("name", ["as killed", "finished"])
def test_what_the_old_code_recorded_is_read(name: str, found: dict[str, dict[str, Any]]) -> None:
    for part in ("loss", "metrics", "weights"):
        assert numbers(found[name])[part] == EXPECTED["found"][name][part], part


@pytest.mark.parametrize("name", ["as killed", "finished"])
def test_the_final_test_can_be_repeated(name: str, found: dict[str, dict[str, Any]]) -> None:
    now, then = said(found[name]), EXPECTED["found"][name]["eval"]
    assert found[name]["codes"][-1] == 0
    assert set(now) == {key for key in then if "/" in key}
    for key, value in now.items():  # activations are rounded: other code may round one apart
        assert value == pytest.approx(then[key]["now"], rel=0.05), key
    assert numbers(found[name])["weights"] == EXPECTED["found"][name]["weights"]


def test_a_finished_run_is_shown_and_left_alone(
    found: dict[str, dict[str, Any]], place: Path
) -> None:
    said = (place / "finished.log.txt").read_text(encoding="utf-8")
    assert f"done already with numerics 1 (this version: {NUMERICS}): finished" in said
    for name in ("run.json", "steps.csv", "config.yaml", "checkpoints/last.ckpt"):
        assert (place / "finished" / name).read_bytes() == (FOLDER / "finished" / name).read_bytes()
    assert (FOLDER / "finished" / "checkpoints" / "last.ckpt").is_symlink()
