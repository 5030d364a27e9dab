"""The main job's sentences, and a run of two steps."""

from __future__ import annotations

import pytest

from benchmarks import main_job
from chimera.paths import ROOT


def test_each_processor_has_a_sentence_with_its_spread() -> None:
    run = {"steps": 1800, "tokens": 3686400, "seconds": 250.0, "unigram": 600.0}
    text = main_job.page(
        {
            "B": {"machine": {"cpus": 4}, "runs": [run | {"seed": 0, "perplexity": 200.0}]},
            "C": {"machine": {"cpus": 8}, "runs": [run | {"steps": 900, "perplexity": 200.0}]},
            "A": {
                "machine": {"cpus": 2},
                "runs": [run | {"seed": s, "perplexity": 148.0 + 2 * s} for s in range(3)],
            },
        }
    )
    first, second, third = text.splitlines()
    assert first.startswith("On 2 cores of A the main job takes 4:10 from a cold cache (1,800 s")
    assert "3.7 million tokens). It ends with a validation perplexity of 150.0 ± 2.0 (3 s" in first
    assert "4.00 times lower than the 600.0 of a unigram model" in first
    said = "On 4 cores of B it takes 4:10 and ends with 200.0 (one seed), 3.00 times lower."
    assert second == said
    assert "takes 4:10 from a cold cache (900 steps" in third  # another job is described anew


def test_the_job_is_that_of_make_train() -> None:
    lines = (ROOT / "Makefile").read_text(encoding="utf-8").splitlines()
    (line,) = [line for line in lines if line.startswith("RUN ")]
    assert tuple(line.partition("?=")[2].split()) == main_job.JOB


@pytest.mark.slow
def test_a_run_is_measured() -> None:
    found = main_job.measure(("scale=smoke", "logger=none", "trainer.max_steps=2"), 3)
    assert (found["seed"], found["steps"]) == (3, 2)
    assert found["tokens"] == 2 * 8 * 64
    assert found["seconds"] > 0
    assert found["perplexity"] > found["unigram"] > 1
