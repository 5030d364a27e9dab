"""What a person sees of a run."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from chimera.callback.log.progress import Progress
from tests.callback.test_step_log import step


class Fit:
    """As much of a trainer as the display asks for."""

    class state:  # noqa: N801 - Lightning's name
        fn = "fit"

    is_global_zero = True
    max_steps = 10
    global_step = 0
    sanity_checking, training = False, True
    progress_bar_callback: Progress
    callback_metrics: dict[str, float] = {"val/perplexity": 321.0}  # noqa: RUF012


def test_lines_outside_a_terminal() -> None:
    display, text, fit = Progress(every=2), io.StringIO(), Fit()
    display.out = Console(file=text, width=200)
    display.setup(fit, None, "fit")  # type: ignore[arg-type]
    display.on_train_start(fit, None)  # type: ignore[arg-type]
    for number in range(1, 5):
        display.on_step(step(number))
    display.on_validation_end(fit, None)  # type: ignore[arg-type]
    display.on_step(step(5))
    display.on_step(step(6))
    shown = text.getvalue().splitlines()
    assert [line.split()[1] for line in shown] == ["2/10", "4/10", "6/10"]
    words = ("mean loss 3.750", "lr 5.00e-04", "1.3k tok/s", "left")
    assert all(word in shown[0] for word in words)
    assert "val ppl 321.0" in shown[2]


@pytest.mark.parametrize("total", [10, 1_000_000])
@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_bar_in_a_terminal(
    width: int, total: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # a terminal, for rich
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(width))
    display, fit = Progress(), Fit()
    fit.max_steps = total
    fit.progress_bar_callback = display
    display.setup(fit, None, "fit")  # type: ignore[arg-type]
    display.on_train_start(fit, None)  # type: ignore[arg-type]
    display.on_validation_end(fit, None)  # type: ignore[arg-type]
    for number in range(1, 11):
        fit.global_step = number
        display.on_step(step(number))
        display.on_train_batch_end(fit)  # type: ignore[arg-type]
    display.teardown(fit, None, "fit")  # type: ignore[arg-type]
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().err)
    last = re.split(r"[\r\n]+", shown.rstrip())[-1]
    assert f"10/{total}" in last
    assert re.search(r"mean loss \d+\.\d{3} .*\d\.\dk tok/s", last)
    assert re.search(r"(\d+:\d\d|-:--)$", last.rstrip())  # the time left
    assert ("lr 5.00e-04" in last) == (width >= 80)
    assert ("val ppl 321.0" in shown) == (width > 100)
    assert max(map(len, re.split(r"[\r\n]+", shown))) <= width


def test_nothing_where_nothing_is_wanted(capsys: pytest.CaptureFixture[str]) -> None:
    display, fit = Progress(style="none", every=1), Fit()
    display.setup(fit, None, "fit")  # type: ignore[arg-type]
    display.on_train_start(fit, None)  # type: ignore[arg-type]
    display.on_step(step(1))
    assert capsys.readouterr() == ("", "")
