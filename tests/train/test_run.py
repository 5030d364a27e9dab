"""A run from the command line: files in its directory, evaluation, resumption."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from chimera.callback.log.steps import FIELDS
from chimera.cli.train import main
from chimera.sweep.local import Local, Start
from tests import forks

MAIN_JOB = ["mixer=retnet", "quant=bitnet158", "norm=qdyt", "scale=smoke", "model.dim=32"]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with text.txt, a few hundred invented sentences."""
    folder = tmp_path_factory.mktemp("text")
    things, does = ("cat", "dog", "bird", "child"), ("sees", "likes", "follows", "hears")
    lines = [
        f"The {a} {b} the {c} near house number {i}.\n"
        for i, (a, b, c) in enumerate(
            (a, b, c) for _ in range(8) for a in things for b in does for c in things
        )
    ]
    (folder / "text.txt").write_text("\n".join(lines))
    return folder


def train(text: Path, to: Path, *more: str) -> list[str]:
    """A command line for `train.py` with the main job on the text."""
    data = ["data=text", f"data.path={text / 'text.txt'}", f"data.cache_dir={text / 'cache'}"]
    return ["train.py", *MAIN_JOB, *data, f"run_dir={to}", *more]


def run(words: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command line to its end."""
    return forks.run(*words)


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "steps.csv").open() as file:
        return [{k: v for k, v in row.items() if k != "timestamp"} for row in csv.DictReader(file)]


def test_files_of_a_run_and_their_evaluation(text: Path, tmp_path: Path) -> None:
    to = tmp_path / "run"
    done = run(train(text, to))
    assert done.returncode == 0, done.stderr
    assert "of a unigram model on the same tokens" in done.stderr
    assert "retnet" in done.stderr  # the table of components
    assert json.loads((to / "status.json").read_text())["state"] == "DONE"
    record = json.loads((to / "run.json").read_text())
    assert record["choices"]["mixer"] == "retnet"
    assert record["parameters"]["total"] == sum(
        n for k, n in record["parameters"].items() if k != "total"
    )
    assert {"val/perplexity", "test/perplexity", "test/accuracy", "val/unigram_perplexity"} <= set(
        record["metrics"]
    )
    assert record["tokens_per_second"] > 0
    assert len(record["tokenizer"]["sha256"]) == 64
    assert tuple(csv.DictReader((to / "steps.csv").open()).fieldnames or ()) == FIELDS
    assert [int(r["global_step"]) for r in rows(to)] == list(range(1, 13))
    assert (to / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert list((to / "wandb").glob("offline-run-*/*.wandb"))
    assert (to / "overrides.txt").read_text().splitlines()[0] == "mixer=retnet"

    found = run(["eval.py", f"run={to}"])
    assert found.returncode == 0, found.stderr
    shown = json.loads(found.stdout)
    for metric in ("test/loss", "test/perplexity", "test/accuracy"):
        assert shown[metric]["now"] == pytest.approx(shown[metric]["recorded"], rel=1e-6)

    again = run(train(text, to))
    assert again.returncode == 0
    assert "done already" in again.stderr
    assert rows(to)[-1]["global_step"] == "12"


LONGER = ["logger=none", "model.dropout=0.1", "trainer.accumulate_grad_batches=2"]
LONGER += ["trainer.checkpoint_every_n_steps=1", "trainer.max_steps=10"]


@pytest.fixture(scope="module")
def whole(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that is not interrupted."""
    to = tmp_path_factory.mktemp("whole") / "run"
    done = run(train(text, to, *LONGER))
    assert done.returncode == 0, done.stderr
    return to


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGTERM,
        pytest.param(signal.SIGINT, marks=pytest.mark.slow),
        pytest.param(signal.SIGHUP, marks=pytest.mark.slow),
        pytest.param(signal.SIGKILL, marks=pytest.mark.slow),  # test_torture has one of the fast
    ],
)
def test_an_interrupted_run_resumes_with_the_same_numbers(
    number: signal.Signals, text: Path, whole: Path, tmp_path: Path
) -> None:
    if signal.getsignal(number) == signal.SIG_IGN:
        pytest.skip("under nohup the signal is ignored, in the run too")
    broken = tmp_path / "broken"
    process = forks.start(*train(text, broken, *LONGER))
    steps = broken / "steps.csv"
    deadline = time.monotonic() + 120
    while not steps.exists() or steps.read_text().count("\n") < 5:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(number)
    code = process.wait().returncode
    if number is not signal.SIGKILL and len(rows(broken)) < 10:
        assert code == 130
        assert json.loads((broken / "status.json").read_text())["state"] == "STOPPED"
    resumed = run(train(text, broken, *LONGER))
    assert resumed.returncode == 0, resumed.stderr
    assert rows(broken) == rows(whole)
    first, second = (
        torch.load(d / "checkpoints/last.ckpt", weights_only=True)["state_dict"]
        for d in (whole, broken)
    )
    assert all(torch.equal(first[k], second[k]) for k in first)


def test_eval_of_a_folder_without_a_run_gives_one_line(tmp_path: Path) -> None:
    found = run(["eval.py", f"run={tmp_path}"])
    assert found.returncode == 2
    assert found.stderr.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize("jobs", ["forks", pytest.param("processes", marks=pytest.mark.slow)])
def test_a_sweep_runs_each_missing_job(
    jobs: str, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep starts a job as a new process of five seconds; a fork takes one."""
    if jobs == "forks":
        monkeypatch.setattr(Local, "_start", forked)
    words = [w for w in train(text, tmp_path / "x")[1:] if not w.startswith("run_dir=")]
    words += ["trainer.max_steps=2", "logger=none"]
    assert run(["train.py", *words, "seed=0", f"run_dir={tmp_path}/0"]).returncode == 0
    first = (tmp_path / "0/run.json").read_bytes()
    assert main([*words, "-m", "seed=0,1", f"run_dir={tmp_path}/${{seed}}"]) == 0
    assert (tmp_path / "0/run.json").read_bytes() == first
    assert json.loads((tmp_path / "1/run.json").read_text())["steps"] == 2
    (page,) = (tmp_path / "compare").glob("*/compare.html")
    assert page.read_text().count("<tr>") == 2  # the head, and the two seeds as one row


def forked(self: Local, start: Start) -> SimpleNamespace:
    """Stands for `Local._start`: runs the job as a fork, to its end."""
    done = run(["train.py", *start.overrides])
    start.log.write_text(done.stdout + done.stderr)
    return SimpleNamespace(where="a fork", poll=lambda: done.returncode)


def test_a_sweep_refuses_an_unknown_choice() -> None:
    assert run(["train.py", "-m", "mixer=retnett,attention"]).returncode == 2
