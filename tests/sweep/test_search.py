"""A search proposes runs, prunes them by their validations, and goes on after a kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution

from chimera.errors import UserError
from chimera.sweep.local import Start
from chimera.sweep.run_sweep import sweep
from chimera.sweep.search import Search, SearchScheduler, Study, Trial, show, study_file
from tests.sweep.kit import BEGIN, DONE, Scripts, Silent

#: A run of ten validations: its loss falls towards the distance of its rate from 0.01.
RUN = (
    BEGIN
    + """
import math, signal
def save(*_): run.write_status("STOPPED", step=step); os._exit(130)
signal.signal(signal.SIGINT, save)
lr, pause = float(sys.argv[2]), float(sys.argv[3])
loss = abs(math.log10(lr) + 2)
values = []
for step in range(1, 11):
    values.append([step, loss + 1 / step])
    (run.path / "v").write_text(json.dumps(
        {"monitor": "val/loss", "better": "lower", "values": values}))
    os.replace(run.path / "v", run.path / "validations.json")
    time.sleep(pause)
"""
    + DONE.replace("7.0", "loss")
)
LR = {"optim.lr": FloatDistribution(1e-4, 1e-1, log=True)}


class Rates(Scripts):
    """Launcher whose runs need nothing but their rate."""

    def __init__(self, pause: float = 0.0) -> None:
        super().__init__(at_once=None)
        self.pause = pause
        self.started: list[str] = []

    def words(self, start: Start) -> list[str]:
        rate = next(o.partition("=")[2] for o in start.overrides if o.startswith("optim.lr="))
        self.started.append(rate)
        return [RUN, rate, str(self.pause)]


def engine(root: Path, workers: int = 1, pause: float = 0.0, **settings: object) -> SearchScheduler:
    study = Study(root / "s.sqlite", LR, Search(**settings))  # type: ignore[arg-type]
    return SearchScheduler(study, ["scale=smoke"], Rates(pause), workers, Silent())


def results(found: SearchScheduler) -> list[tuple[Trial, str, float | None]]:
    return found.study.trials()


@pytest.fixture(autouse=True)
def _runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHIMERA_RUNS", str(tmp_path / "runs"))


def test_a_second_command_adds_only_the_missing_trials(tmp_path: Path) -> None:
    engine(tmp_path, trials=2).run()
    again = engine(tmp_path, trials=3)
    again.run()
    assert len(again.launcher.started) == 1  # type: ignore[attr-defined]
    assert len(results(again)) == 3


@pytest.mark.slow
def test_asha_prunes_and_a_pruned_run_is_saved_marked_and_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = engine(tmp_path, trials=5, pause=0.1, pruner="asha", reduction=2, min_steps=2)
    found.run()
    show(found)
    states = [state for _, state, _ in results(found)]
    assert {"complete", "pruned"} == set(states)
    pruned = [job for job in found.jobs.values() if job.status().get("pruned")]
    assert len(pruned) == states.count("pruned")
    assert all(job.status()["state"] == "STOPPED" for job in pruned)
    out = capsys.readouterr().out
    assert "pruned at step" in out
    assert "goes on by its own command" in out
    # Its own command trains it to its end; then it counts.
    run = pruned[0].directory
    subprocess.run([sys.executable, "-c", RUN, str(run.path), "0.01", "0"], check=True)
    assert run.status()["state"] == "DONE"
    show(found)
    assert "revived" in capsys.readouterr().out


CHILD = """
import sys
from pathlib import Path
from tests.sweep.test_search import engine
engine(Path(sys.argv[1]), trials=4, pause=0.05).run()
"""


@pytest.mark.slow
def test_a_search_goes_on_after_its_driver_was_killed(tmp_path: Path) -> None:
    driver = subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path)])
    runs = tmp_path / "runs"
    while sum(json.loads(f.read_text())["state"] == "DONE" for f in runs.glob("*/status.json")) < 1:
        time.sleep(0.05)
    time.sleep(0.2)  # in the middle of the second run
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    again = engine(tmp_path, trials=4)
    again.run()
    assert [state for _, state, _ in results(again)] == ["complete"] * 4
    (tmp_path / "other").mkdir()
    other = engine(tmp_path / "other", trials=4)
    other.run()  # finds the same four runs, done: the draws do not depend on the kill
    assert [t.overrides for t, _, _ in results(other)] == [
        t.overrides for t, _, _ in results(again)
    ]
    assert other.launcher.started == []  # type: ignore[attr-defined]


def test_a_trial_that_is_no_valid_run_is_told_and_the_others_go_on(tmp_path: Path) -> None:
    position = CategoricalDistribution(("none", "alibi"))  # alibi needs attention scores
    study = Study(
        tmp_path / "s.sqlite", {"position": position, **LR}, Search(trials=4, sampler="random")
    )
    found = SearchScheduler(study, ["scale=smoke", "mixer=retnet"], Rates(), 1, Silent())
    found.run()
    states = [state for _, state, _ in results(found)]
    assert states.count("fail") == len(found.refused) > 0
    assert "complete" in states


def test_without_optuna_the_line_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UserError, match=r"chimera-lm\[search\]"):
        sweep(["optim.lr=interval(1e-4,1e-2)", "search.trials=2"])


def test_the_number_of_trials_and_workers_do_not_make_another_search() -> None:
    of = ["optim.lr=interval(1,2)", "seed=0"]
    one = study_file([*of, "workers=2"], Search(trials=3))
    assert one == study_file(of, Search(trials=9))
    assert one != study_file(["optim.lr=interval(1,3)", "seed=0"], Search(trials=3))
    assert one != study_file(of, Search(trials=3, pruner="asha"))
