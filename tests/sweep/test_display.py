"""Output of a sweep to a terminal and to a file."""

from __future__ import annotations

import io
import time
from pathlib import Path

import pytest
from rich.console import Console

from chimera.sweep.job import State
from chimera.sweep.scheduler import Display, seconds_left
from tests.sweep.kit import job, status


def display(*, terminal: bool) -> tuple[Display, io.StringIO]:
    out = io.StringIO()
    return Display(2, Console(file=out, force_terminal=terminal, width=100, height=10)), out


def running(display: Display) -> list[str]:
    return [task.description for task in display.progress.tasks if task.visible]


def test_without_a_terminal_each_change_of_state_is_a_line(tmp_path: Path) -> None:
    shown, out = display(terminal=False)
    work = [job(tmp_path, name) for name in "ab"]
    with shown.showing(work):
        shown.update()
        work[0].state = State.RUNNING
        shown.update()
        shown.update()
        work[0].become(State.FAILED, "loss is [bold]nan")
        shown.update()
    assert out.getvalue() == "[0/2] a: running\n[1/2] a: failed: loss is [bold]nan\n"


def test_a_running_job_has_step_loss_and_time_left(tmp_path: Path) -> None:
    shown, out = display(terminal=True)
    work = job(tmp_path, "mixer.cycle=[a]")
    with shown.showing([work]):
        work.state = State.RUNNING
        clock = [100.0]
        shown.progress.get_time = lambda: clock[0]
        for step, loss in ((10, 2.5), (20, 2.0), (40, 1.25)):
            progress = {"step": step, "max_steps": 100, "loss": loss}
            status(tmp_path, "mixer.cycle=[a]", state="RUNNING", **progress)
            shown.update()
            clock[0] += 30.0
        (task,) = shown.progress.tasks
        assert task.time_remaining == 120  # 30 steps a minute
        shown.progress.refresh()
    for cell in ("mixer.cycle=[a]", "running", "40/100", "loss 1.250", "0:02:00"):
        assert cell in out.getvalue()


def test_only_running_jobs_have_a_bar(tmp_path: Path) -> None:
    shown, out = display(terminal=True)
    work = [job(tmp_path, str(i)) for i in range(20)]
    with shown.showing(work):
        work[16].state, work[17].state = State.RUNNING, State.ELSEWHERE
        shown.update()
        assert running(shown) == ["16", "17"]
        work[16].become(State.DONE, "val/loss 1")
        work[17].become(State.FAILED)
        shown.update()
        assert running(shown) == []
    assert "[2/20] 16: done: val/loss 1" in out.getvalue()


def test_the_time_left_follows_from_the_jobs_that_have_ended(tmp_path: Path) -> None:
    work = [job(tmp_path, name) for name in "abcd"]
    assert seconds_left(work, 2) == 0
    work[0].state, work[0].seconds = State.DONE, 60.0
    work[1].state, work[1].started = State.RUNNING, time.monotonic() - 40
    assert seconds_left(work, 1) == pytest.approx(140, abs=1)
    assert seconds_left(work, 2) == pytest.approx(70, abs=1)
    assert seconds_left(work, 8) == pytest.approx(140 / 3, abs=1)
