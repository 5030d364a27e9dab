"""Fast subsets of R5 and R6; `make torture` runs them whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.torture import bad_config, sweep

#: One per stage of the checks.
SOME = [case for case in bad_config.BAD if case[0].startswith(("optm", "mixer=retnet pos", "-m s"))]


@pytest.mark.parametrize(("words", "says"), SOME, ids=[words for words, _ in SOME])
def test_bad_words_are_refused(words: str, says: list[str], tmp_path: Path) -> None:
    wrong, _ = bad_config.refused(words, says, tmp_path)
    assert not [w for w in wrong if not w.endswith(" s")]  # the clock is R5's; this one is shared


def test_a_killed_job_leaves_the_other_and_goes_on(tmp_path: Path) -> None:
    words = ["seed=0,1", *sweep.WORDS[0:1], *sweep.WORDS[2:], "model.dim=32", "model.depth=1"]
    sweep.plant(tmp_path, {"seed=1": "kill"})
    first = sweep.sweep(tmp_path, words)
    assert first.returncode == 1
    assert "failed: seed=1: killed by SIGKILL" in first.stderr
    assert sorted(sweep.states(tmp_path).values()) == ["DONE", "RUNNING"]
    assert sweep.attempts(tmp_path) == 2
    assert sweep.sweep(tmp_path, words).returncode == 0
    assert list(sweep.states(tmp_path).values()) == ["DONE", "DONE"]
    assert sweep.attempts(tmp_path) == 3


@pytest.mark.slow
def test_r6(tmp_path: Path) -> None:
    good, total = sweep.r6(tmp_path)
    assert good == total
