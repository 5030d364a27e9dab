"""What is shown of a sweep."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from chimera.sweep.board import Board, clock
from chimera.sweep.engine import State, Work
from tests.sweep.kit import job, status


def board(*, terminal: bool, height: int = 40) -> tuple[Board, io.StringIO]:
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=90, height=height)
    return Board(console), out


def test_a_line_for_each_change_without_a_terminal(tmp_path: Path) -> None:
    shown, out = board(terminal=False)
    work = [Work(job(tmp_path, name)) for name in "ab"]
    with shown.showing(work):
        shown.update()
        work[0].state = State.RUNNING
        shown.update()
        shown.update()
        work[0].become(State.FAILED, "loss is nan")
        shown.update()
    assert out.getvalue() == "[0/2] a: running\n[1/2] a: failed: loss is nan\n"


def test_rows_have_state_step_loss_and_time_left(tmp_path: Path) -> None:
    shown, out = board(terminal=True)
    work = Work(job(tmp_path, "mixer=retnet"))
    work.state = State.RUNNING
    with shown.showing([work]):
        status(tmp_path, "mixer=retnet", state="RUNNING", step=10, max_steps=100, loss=2.5)
        shown.table()
        shown._pace[work] = (shown._pace[work][0] - 30.0, 10)
        status(tmp_path, "mixer=retnet", state="RUNNING", step=40, max_steps=100, loss=1.25)
        shown.console.print(shown.table())
    text = out.getvalue()
    for cell in ("mixer=retnet", "running", "40/100", "1.250", "1:00", "0 of 1 over"):
        assert cell in text


def test_a_small_terminal_keeps_what_moves(tmp_path: Path) -> None:
    shown, _ = board(terminal=True, height=10)
    work = [Work(job(tmp_path, str(i))) for i in range(20)]
    for one in work[:15]:
        one.state = State.DONE
    work[15].state, work[16].state = State.FAILED, State.RUNNING
    shown._work = work
    table = shown.table()
    assert table.row_count == 3
    assert "16 of 20 over, 1 failed; 17 more not shown" in str(table.caption)
    assert list(table.columns[0].cells) == ["15", "16", "17"]
    assert shown.table(everything=True).row_count == 20


def test_clock() -> None:
    assert [clock(s) for s in (5, 65, 3665)] == ["0:05", "1:05", "1:01:05"]
