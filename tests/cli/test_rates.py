"""`chimera rates` chooses from finished runs and writes what reports then use."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

from chimera.cli import table
from chimera.cli.table import rates
from chimera.config import tables
from chimera.report.markdown import report
from chimera.report.table_results import read_results
from tests.config.folders_kit import folders
from tests.report.runs import make

TABLE = "bitnet_qdyt/norms"
#: Perplexity of the held-out seed by rate and row.
VALUES = {
    0.001: {"layernorm": 9.0, "qdyt": 8.0, "static_tanh": 7.0},
    0.004: {"layernorm": 7.0, "qdyt": 8.5, "static_tanh": 6.0},
}
WORDS = [TABLE, "scale=smoke", "rates=1e-3,4e-3"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CHIMERA_RUNS", str(tmp_path / "runs"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(table, "EXPERIMENTS", tmp_path / "mine")
    (tmp_path / "mine" / "bitnet_qdyt").mkdir(parents=True)
    return tmp_path / "mine"


def refused(said: str, words: list[str]) -> None:
    """The command ends with code 2 and one line that has these words."""
    with contextlib.redirect_stderr(io.StringIO()) as stream:
        assert rates(words) == 2
    (line,) = stream.getvalue().splitlines()
    assert re.search(said, line)


def held_out(rate: float) -> None:
    values = {(row, 100): value for row, value in VALUES[rate].items()}
    make(TABLE, values, overrides=("scale=smoke", f"optim.lr={rate:g}"))


def test_a_row_needs_the_rates_beside_its_best_only(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rate in VALUES:
        held_out(rate)
    beyond = [*WORDS[:2], "rates=5e-4,1e-3,4e-3"]
    refused(r"run of qdyt with optim.lr=0.0005, beside the best", beyond)
    make(TABLE, {("qdyt", 100): 8.2}, overrides=("scale=smoke", "optim.lr=0.0005"))
    assert rates(beyond) == 0
    assert (
        "qdyt: 0.001; val/perplexity by rate 0.0005: 8.2, 0.001: 8, 0.004: 8.5\n"
        in capsys.readouterr().out
    )
    written = (folder / f"{TABLE}.rates.csv").read_text("utf-8")
    assert written.count("smoke,qdyt,") == 3
    assert written.count("smoke,layernorm,") == 2


def test_a_second_seed_tries_the_two_best_and_the_mean_decides(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for rate in VALUES:
        held_out(rate)
    make(TABLE, {("layernorm", 100): 20.0}, overrides=("scale=smoke", "optim.lr=0.0005"))
    make(TABLE, {("qdyt", 100): 20.0}, overrides=("scale=smoke", "optim.lr=0.0005"))
    words = [*WORDS[:2], "rates=5e-4,1e-3,4e-3", "seed=100,101"]
    refused(r"optim.lr=0.001,0.004 seed=101 workers=2", words)
    for rate, values in VALUES.items():
        of_second = {(row, 101): value + 9 * (rate == 0.004) for row, value in values.items()}
        make(TABLE, of_second, overrides=("scale=smoke", f"optim.lr={rate:g}"))
    assert rates([*words[:-1], "seed=100,101,101"]) == 0
    assert (
        "layernorm: 0.001; val/perplexity by rate 0.0005: 20, 0.001: 9, 0.001: 9, 0.004: 7"
        in capsys.readouterr().out
    )
    with folders(monkeypatch, folder):
        make(TABLE, {("layernorm", 0): 7.5, ("qdyt", 0): 8.1, ("static_tanh", 0): 6.5})
        summary = read_results(TABLE, ["scale=smoke"], [0])
        assert {cell.config["optim"]["lr"] for cell in summary.cells} == {0.001}
        text = report(summary)
        at_other_steps = ("scale=smoke", "trainer.max_steps=3")
        make(TABLE, {(row, 0): 8.0 for row in VALUES[0.001]}, overrides=at_other_steps)
        longer = report(read_results(TABLE, list(at_other_steps), [0]))
    assert "The two best rates were repeated on seed 101, and the mean decides." in text
    assert "The rates were chosen at" not in text
    steps = summary.cells[0].config["trainer"]["max_steps"]
    said = (
        "Each row has the learning rate with the best `val/perplexity` among 0.0005, 0.001, 0.004"
    )
    assert f"{said} on seed 100, which this report does not use" in text
    assert f"The rates were chosen at {steps} steps, the rows take 3; another" in longer


def test_rows_with_more_seeds_than_others_are_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rate, values in VALUES.items():
        held_out(rate)
        second = {("qdyt", 101): values["qdyt"]}
        make(TABLE, second, overrides=("scale=smoke", f"optim.lr={rate:g}"))
    with folders(monkeypatch, folder):
        assert rates(WORDS) == 0
        assert rates([*WORDS, "seed=100,101", "rows=qdyt"]) == 0
        make(TABLE, {(row, 0): value for row, value in VALUES[0.001].items()})
        text = report(read_results(TABLE, ["scale=smoke"], [0]))
    assert "The two best rates of `qdyt` were repeated on seed 101, and the mean decides." in text


def test_missing_runs_are_named_and_nothing_is_written(folder: Path) -> None:
    refused(r"optim.lr=0.001,0.004 seed=100", WORDS)
    held_out(0.001)
    refused(r"optim.lr=0.004, .* seed=100 workers=2", WORDS)
    refused("norms=layernorm,static_tanh,qdyt scale=smoke", WORDS)
    assert not list((folder / "bitnet_qdyt").iterdir())
    refused("name several", [*WORDS[:2], "rates=1e-3"])


def test_the_reports_rows_have_the_chosen_rates(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for rate in VALUES:
        held_out(rate)
    assert rates(WORDS) == 0
    said = capsys.readouterr().out
    assert "layernorm: 0.004 (at an end of the tried rates)" in said
    assert "qdyt: 0.001 (at an end of the tried rates)" in said
    with folders(monkeypatch, folder):
        make(TABLE, {("layernorm", 0): 7.5, ("qdyt", 0): 8.1, ("static_tanh", 0): 6.5})
        summary = read_results(TABLE, ["scale=smoke"], [0])
        chosen = {cell.row: cell.config["optim"]["lr"] for cell in summary.cells}
        assert chosen == {"layernorm": 0.004, "qdyt": 0.001, "static_tanh": 0.004}
        text = report(summary)
        assert "among 0.001, 0.004 on seed 100, which this report does not use" in text
        assert "| `optim.lr` | 0.004 | 0.004 | 0.001 |" in text
        fixed = report(read_results(TABLE, ["scale=smoke", "optim.lr=0.002"], [0]))
        assert "learning rate with the best" not in fixed


def test_some_rows_can_be_chosen_for_and_the_report_names_the_others(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for rate in VALUES:
        make(TABLE, {("qdyt", 100): rate}, overrides=("scale=smoke", f"optim.lr={rate:g}"))
    refused(r"rows=qdit is not known; choose one of .*layernorm", [*WORDS, "rows=qdit"])
    assert rates([*WORDS, "rows=qdyt"]) == 0
    assert "layernorm" not in capsys.readouterr().out
    for rate in VALUES:
        values = {("layernorm", 100): VALUES[rate]["layernorm"]}
        make(TABLE, values, overrides=("scale=smoke", f"optim.lr={rate:g}"))
    with folders(monkeypatch, folder):
        rates([*WORDS, "rows=layernorm"])  # keeps qdyt's
        rows = [line.row for line in tables.tried(TABLE) if line.scale == "smoke"]
        assert list(dict.fromkeys(rows)) == ["layernorm", "qdyt"], "in the table's order"
        make(TABLE, {("layernorm", 0): 7.5, ("qdyt", 0): 8.1, ("static_tanh", 0): 6.5})
        summary = read_results(TABLE, ["scale=smoke"], [0])
        text = report(summary)
    lr = {cell.row: cell.config["optim"]["lr"] for cell in summary.cells}
    assert (lr["qdyt"], lr["layernorm"]) == (0.001, 0.004)
    assert "Each row except `static_tanh` has the learning rate" in text
