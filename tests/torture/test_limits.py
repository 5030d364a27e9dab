"""Skipped steps under guard=skip, a full disk at any write, an exception in a step."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.torture import job

pytestmark = pytest.mark.slow


def test_a_bad_step_is_skipped_and_counted_and_changes_no_weight(folder: Path) -> None:
    more = ("guard=skip", "guard.max_skips=2", "trainer.checkpoint_every_n_steps=1")
    command = job.new(folder, "skip", *more, "trainer.checkpoint_keep=99")
    code, said = job.train(command, "faults.poison('loss', 'nan', micro_batch=11)")
    assert code == 0, said
    run = folder / "skip"
    skipped = json.loads((run / "run.json").read_text())["skipped"]
    assert skipped == {"not_finite": 1, "scaler": 0}
    before, after, later = (job.load(run, f"rolling-{n}")["state_dict"] for n in (5, 6, 7))
    # α and the warm-up buffer are functions of the step and change in a skipped step too.
    same = [n for n in before if "alpha" not in n and "warm" not in n]
    assert all(job.equal(before[n], after[n]) for n in same)
    assert not job.equal(after, later)
    rows = job.rows(run)
    assert len(rows) == 14
    assert rows[5]["loss"] == "nan"


def test_one_bad_step_more_than_may_be_skipped_stops_the_run(folder: Path) -> None:
    command = job.new(folder, "many", "guard=skip", "guard.max_skips=2", "optim.lr=1e-3")
    code, said = job.train(command, "faults.poison('loss', 'inf')")
    assert code == 1
    assert "2 steps were skipped before" in said
    assert len(list((folder / "many").glob("nan_report-*.json"))) == 3


@pytest.mark.parametrize(
    ("file", "number"), [("checkpoint", 1), ("checkpoint", 4), ("row", 5), ("sidecar", 3)]
)
def test_a_full_disk_is_one_line_and_damages_no_other_file(
    file: str, number: int, folder: Path
) -> None:
    """With free space the run goes on."""
    command, run = job.new(folder, "full"), folder / "full"
    code, said = job.train(command, f"faults.full_at({file!r}, {number})")
    assert code == 2
    assert said.count("error: no space left") == 1
    assert "Traceback" not in said
    json.loads((run / "status.json").read_text())
    assert not [p for p in run.rglob(".*") if p.name != ".lock"]
    assert (run / "steps.csv").read_bytes().endswith(b"\n")
    job.resumed(command, job.whole(folder))


def test_after_an_exception_the_run_resumes_from_before_the_step(folder: Path) -> None:
    command = job.new(folder, "crash")  # in step 8; step 6 is saved
    fault = "faults.plant(faults.MaskedLM, 'training_step', 14, faults.fail)"
    assert job.train(command, fault)[0] == 1
    job.resumed(command, job.whole(folder), says="emergency.ckpt at step 7")
