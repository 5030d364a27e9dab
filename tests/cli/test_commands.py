"""Run train.py, eval.py and generate.py one after another on a small run."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from chimera.config.compose import compose, plain
from chimera.paths import ROOT
from tests import forks
from tests.data.kit import sentences


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    (folder / "text.txt").write_text("\n\n".join(sentences(400)))
    words = ["task=causal_lm", "scale=smoke", "model.dim=32", "model.depth=1", "mixer=gqa"]
    words += ["data=text", f"data.path={folder / 'text.txt'}", f"data.cache_dir={folder / 'cache'}"]
    words += ["tokenizer.vocab_size=80", "tokenizer.byte_fallback=false", "logger=none"]
    words += ["position=rope", "task.longer=[2]", "task.cost_at=[16]", f"run_dir={folder / 'run'}"]
    done = forks.run("train.py", *words)
    assert done.returncode == 0, done.stderr
    return folder / "run"


def test_a_run_records_the_extra_metrics(run: Path) -> None:
    metrics = json.loads((run / "run.json").read_text())["metrics"]
    assert {"val/loss", "val/perplexity", "test/perplexity", "val/unigram_perplexity"} <= set(
        metrics
    )
    assert {"val/loss_2x", "val/perplexity_2x", "cost/latency_ms@16"} <= set(metrics)


def test_eval_at_the_trained_and_at_another_length(run: Path) -> None:
    own = forks.run("eval.py", f"run={run}")
    longer = forks.run("eval.py", f"run={run}", "length=128")
    assert own.returncode == longer.returncode == 0, own.stderr + longer.stderr
    shown = json.loads(own.stdout)["test/loss"]
    assert shown["now"] == pytest.approx(shown["recorded"], rel=1e-6)
    kept = json.loads((run / "eval-128.json").read_text())
    assert kept["test/loss"] == json.loads(longer.stdout)["test/loss"]["now"]
    assert kept["length"] == 128


def test_a_prompt_gives_the_same_text_alone_and_in_a_batch(run: Path, tmp_path: Path) -> None:
    (tmp_path / "prompts").write_text("the cat\nthe old red fox ran\n\u00df\u00f8\n")
    words = [f"run={run}", "max_new=12", "seed=3", "temperature=0.9", "top_k=20"]
    alone = forks.run("generate.py", *words, "prompt=the cat")
    both = forks.run("generate.py", *words, f"prompts={tmp_path / 'prompts'}")
    assert alone.returncode == both.returncode == 0, alone.stderr + both.stderr
    assert alone.stdout == both.stdout.splitlines(keepends=True)[0]
    assert alone.stdout.startswith("the cat")
    assert len(both.stdout.splitlines()) == 3
    assert "note: the run's vocabulary lacks words or signs of the prompts" in both.stderr
    assert "note" not in alone.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [["eval.py"], ["generate.py", "max_new=4", "prompt=the cat"], ["export.py", "to={folder}/out"]],
    ids=lambda words: words[0],
)
def test_a_script_prints_the_same_in_a_new_process(
    run: Path, words: list[str], tmp_path: Path
) -> None:
    """The server of `tests/forks.py` has libraries imported that a script may forget to import."""
    script, *rest = [word.format(folder=tmp_path) for word in words]
    arguments = [script, f"run={run}", *rest]
    forked = forks.run(*arguments)
    if (tmp_path / "out").exists():
        shutil.rmtree(tmp_path / "out")
    real = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=240
    )
    assert real.returncode == forked.returncode == 0, real.stderr + forked.stderr
    assert real.stdout == forked.stdout


@pytest.mark.parametrize("scale", ["small", "none"])
def test_grouped_and_multi_query_attention_differ_at_every_scale(scale: str) -> None:
    config = plain(compose(["+saidl/attention=gqa", f"scale={scale}"]))
    assert config["model"]["heads"] == 8
    near = plain(compose(["+saidl/attention=sliding_window", f"scale={scale}"]))
    assert near["mixer"]["window"] * 2 == near["data"]["seq_len"]
