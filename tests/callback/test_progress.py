"""What a person sees of a run."""

from __future__ import annotations

import io

from rich.console import Console

from chimera.callback.log.progress import ProgressDisplay
from tests.callback.test_step_log import step


class Fit:
    """As much of a trainer as the display asks for."""

    global_step = 0
    callback_metrics: dict[str, float] = {"val/perplexity": 321.0}  # noqa: RUF012


def lines(**options: object) -> tuple[ProgressDisplay, io.StringIO]:
    text = io.StringIO()
    console = Console(file=text, width=200)
    return ProgressDisplay(10, 1e-3, "auto", 2, console, **options), text  # type: ignore[arg-type]


def test_lines_outside_a_terminal() -> None:
    display, text = lines()
    display.on_fit_start(Fit(), None)  # type: ignore[arg-type]
    for number in range(1, 5):
        display(step(number))
    display.on_validation_end(Fit(), None)  # type: ignore[arg-type]
    display(step(5))
    display(step(6))
    shown = text.getvalue().splitlines()
    assert [line.split()[1] for line in shown] == ["2/10", "4/10", "6/10"]
    assert all(word in shown[0] for word in ("loss", "lr 5.00e-04", "1.3k tok/s", "left"))
    assert "val ppl 321.0" in shown[2]


def test_a_bar_in_a_terminal() -> None:
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=160)
    display = ProgressDisplay(10, 1e-3, "auto", 2, console)
    display.on_fit_start(Fit(), None)  # type: ignore[arg-type]
    for number in range(1, 11):
        display(step(number))
    display.on_fit_end(Fit(), None)  # type: ignore[arg-type]
    shown = text.getvalue()
    assert "10/10" in shown
    assert "tok/s" in shown
    assert "left" in shown
