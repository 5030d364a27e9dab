"""The step log, a row per step with nothing lost or doubled, and what a person sees of a run."""

from __future__ import annotations

import io
import math
import os
import random
import re
from dataclasses import asdict
from pathlib import Path

import pytest
from rich.console import Console

from chimera.callback.log.progress import Progress
from chimera.callback.log.steps import Spikes, Step, StepLog
from chimera.errors import UserError
from chimera.rundir.steps import read


def step(number: int, **change: float) -> Step:
    facts: dict[str, object] = {
        "epoch": 0,
        "step": number,
        "global_step": number,
        "loss": 5.0 / number,
        "accuracy": 0.1,
        "lr": 5e-4,
        "rates": {"norm": 2e-3},
        "grad_norm": 3.0,
        "clip": 1.0,
        "scaler_scale": 1.0,
        "tokens": 128,
        "seconds": 0.1,
        **change,
    }
    return Step(**facts)  # type: ignore[arg-type]


def log_to(path: Path, resumed_step: int = 0) -> StepLog:
    log = StepLog()
    log.open(path, resumed_step)
    return log


def test_fields_are_exactly_those_of_table_5(tmp_path: Path) -> None:
    log_to(tmp_path / "steps.csv").on_step(step(1))
    head = (tmp_path / "steps.csv").read_text().splitlines()[0]
    assert head == (
        "timestamp,epoch,step,global_step,loss,accuracy,learning_rate,grad_norm,scaler_scale,"
        "gpu_memory_gb,gpu_cached_gb"
    )


def test_a_row_is_on_disk_at_once_and_says_what_was_applied(tmp_path: Path) -> None:
    log = log_to(tmp_path / "steps.csv")
    log.on_step(step(1))
    log.on_step(step(2, grad_norm=0.25))
    rows = read(tmp_path / "steps.csv")  # before close
    assert rows["grad_norm"].tolist() == [1.0, 0.25]  # after clipping
    assert rows["learning_rate"][0] == pytest.approx(5e-4)
    assert rows["loss"][1] == 2.5


def test_without_clipping_the_norm_is_the_norm(tmp_path: Path) -> None:
    log_to(tmp_path / "steps.csv").on_step(step(1, clip=0.0))
    assert read(tmp_path / "steps.csv")["grad_norm"][0] == 3.0


def test_spikes_of_the_gradient_are_counted_also_over_a_resume() -> None:
    draw = random.Random(0)
    norms = [10 / (1 + step / 50) + draw.gauss(2, 0.2) for step in range(600)]
    assert _spikes(norms).count == 0  # falling and noisy
    for step in (250, 400, 401):
        norms[step] *= 10
    norms[300] = math.nan
    assert _spikes(norms).count == 3
    assert _spikes(norms[400:], Spikes(**asdict(_spikes(norms[:400])))) == _spikes(norms)
    assert _spikes([*norms[:99], 1e9]).count == 0  # too early to know what is usual


def _spikes(norms: list[float], spikes: Spikes | None = None) -> Spikes:
    spikes = spikes or Spikes()
    for norm in norms:
        spikes.add(norm)
    return spikes


def test_resume_cuts_off_what_the_checkpoint_does_not_know(tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    log = log_to(path)
    for number in range(1, 8):
        log.on_step(step(number))
    with path.open("a") as file:
        file.write("2026-01-01T00:00:00,0,8,8,1.")  # torn by a kill
    resumed = log_to(path, 5)
    resumed.on_step(step(6))
    assert read(path)["global_step"].tolist() == [1, 2, 3, 4, 5, 6]


def test_a_fresh_start_keeps_nothing(tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    log_to(path).on_step(step(1))
    log_to(path)
    assert not len(read(path))


def test_a_file_that_is_no_step_log_is_kept_under_another_name(tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    others = "global_step,timestamp,loss,added\n1,2026-01-01,3.5,x\n"
    path.write_text(others)
    log_to(path, 5).on_step(step(6))
    assert (tmp_path / "steps-1.csv").read_text() == others
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(UserError, match="no regular file"):
        read(path)
    log_to(path, 5).on_step(step(6))
    assert len(read(path)) == 1


@pytest.mark.parametrize("content", [b"a,b\n1,2\n", b"\xff\xfe,\n", b'"' + b"x" * 200_000])
def test_a_foreign_file_is_refused_in_one_line(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "steps.csv").write_bytes(content)
    with pytest.raises(UserError, match=r"steps\.csv"):
        read(tmp_path / "steps.csv")


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
    display.out = Console(file=text, width=80)
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
