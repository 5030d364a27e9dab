"""A run from the command line: files in its directory, evaluation, the jobs of a sweep."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from chimera.callback.log.steps import FIELDS
from chimera.cli.train import main
from chimera.sweep.local import Local, Start
from tests import forks
from tests.train import tiny

MAIN_JOB = ["quant=bitnet158", "norm=qdyt", "trainer.max_steps=4", "trainer.progress=lines"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a text."""
    tiny.write(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_files_of_a_run_and_their_evaluation(here: Path) -> None:
    line = ["train.py", *tiny.LINE, *MAIN_JOB, "logger=wandb", "run_dir=run"]
    done, to = forks.run(*line), here / "run"
    assert done.returncode == 0, done.stderr
    assert "of a unigram model on the same tokens" in done.stderr
    assert "retnet" in done.stderr  # the table of components
    assert tiny.state(to) == "DONE"
    record = tiny.record(to)
    assert record["choices"]["mixer"] == "retnet"
    counts = record["parameters"]
    assert counts["total"] == sum(n for k, n in counts.items() if k != "total")
    metrics = {"val/perplexity", "test/perplexity", "test/accuracy", "val/unigram_perplexity"}
    assert metrics <= set(record["metrics"])
    assert record["tokens_per_second"] > 0
    assert len(record["tokenizer"]["sha256"]) == 64
    assert tuple(csv.DictReader((to / "steps.csv").open()).fieldnames or ()) == FIELDS
    rows = tiny.losses(to)
    assert [int(row["global_step"]) for row in rows] == [1, 2, 3, 4]
    assert (to / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert list((to / "wandb").glob("offline-run-*/*.wandb"))
    assert (to / "overrides.txt").read_text().splitlines()[0] == "mixer=retnet"

    found = forks.run("eval.py", "run=run")
    assert found.returncode == 0, found.stderr
    shown = json.loads(found.stdout)
    for metric in ("test/loss", "test/perplexity", "test/accuracy"):
        assert shown[metric]["now"] == pytest.approx(shown[metric]["recorded"], rel=1e-6)

    again = forks.run(*line)
    assert again.returncode == 0
    assert "done already" in again.stderr
    assert tiny.losses(to) == rows


@pytest.mark.slow
@pytest.mark.parametrize("jobs", ["forks", "processes"])
def test_a_sweep_runs_each_missing_job(
    jobs: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep starts a job as a new process of five seconds; a fork takes one."""
    if jobs == "forks":
        monkeypatch.setattr(Local, "_start", forked)
    words = [*tiny.LINE, "trainer.max_steps=2"]
    assert main([*words, "seed=0", f"run_dir={here}/0"]) == 0
    first = (here / "0/run.json").read_bytes()
    assert main([*words, "-m", "seed=0,1", f"run_dir={here}/${{seed}}"]) == 0
    assert (here / "0/run.json").read_bytes() == first
    assert tiny.record(here / "1")["steps"] == 2
    (page,) = (here / "compare").glob("*/compare.html")
    assert page.read_text().count("<tr>") == 2  # the head, and the two seeds as one row


def forked(self: Local, start: Start) -> SimpleNamespace:
    """Stands for `Local._start`: runs the job as a fork, to its end."""
    done = forks.run("train.py", *start.overrides)
    start.log.write_text(done.stdout + done.stderr)
    return SimpleNamespace(where="a fork", poll=lambda: done.returncode)


def test_each_run_has_the_metrics_of_the_other_rule(here: Path) -> None:
    """A run is judged by both rules of QDyT's mean, on one training (SPEC N3)."""
    found = {}
    for mean in ("running", "token"):
        line = [*tiny.LINE, "norm=qdyt", "trainer.max_steps=3", f"norm.inference_mean={mean}"]
        assert main([*line, f"run_dir={mean}"]) == 0
        found[mean] = tiny.record(here / mean)
    assert tiny.losses(here / "running") == tiny.losses(here / "token")
    running, token = found["running"], found["token"]
    assert set(running["other_rules"]) == {"token_mean", "channel_mean"}
    for key in ("val/loss", "val/perplexity", "val/accuracy"):
        assert running["other_rules"]["token_mean"][key] == token["metrics"][key]
        assert token["other_rules"]["running_mean"][key] == running["metrics"][key]
    assert running["metrics"]["val/loss"] != token["metrics"]["val/loss"]
