"""The measured job is that of `make train`, and a run of two steps is measured."""

from __future__ import annotations

import pytest

from benchmarks import main_job
from chimera.paths import ROOT


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
