"""The report's section by length: reads metric keys, averages seeds, adds published numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chimera.config.compose import compose, plain
from chimera.config.tables import jobs, load
from chimera.report import figures, markdown, metric_grid, style
from chimera.report.table_results import TableResults, read_results
from chimera.rundir.directory import RunDir

OVERRIDES = ["scale=smoke"]


def summary(table: str, metrics: dict[str, dict[str, float]]) -> TableResults:
    """TableResults of a table whose rows ran with these metrics; seed 1 has values larger by 2."""
    for job in jobs(load(table), OVERRIDES, [0, 1]):
        if job.row in metrics:
            folder = RunDir.of(plain(compose(job.overrides))).path
            folder.mkdir(parents=True)
            values = {key: value + 2 * job.seed for key, value in metrics[job.row].items()}
            (folder / "run.json").write_text(json.dumps({"metrics": values}))
            (folder / "status.json").write_text('{"state": "DONE"}')
    return read_results(table, OVERRIDES, [0, 1])


@pytest.fixture(autouse=True)
def _runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHIMERA_RUNS", str(tmp_path))


def test_multiples_of_the_trained_length() -> None:
    rope = {"val/loss": 3.0, "val/loss_2x": 4.0, "val/loss_4x": 5.0, "val/accuracy_2x": 0.1}
    table = summary("saidl/positions", {"rope": rope, "learned": {"val/loss": 7.0}})
    ((title, head, body),) = metric_grid.grids(table)
    assert title == "val/loss, by multiples of the trained length"
    assert head == ["row", "1 ×", "2 ×", "4 ×"]
    rows = {row[0]: row[1:] for row in body}
    assert rows["rope"][1] == "5.0 ± 1.4 (6.14731)"
    assert rows["learned"] == ["8.0 ± 1.4 (6.62816)", "–", "–"]
    assert "## By length" in markdown.report(table)
    assert figures.lengths(table) is None  # of loss and perplexity only perplexity is drawn


@pytest.mark.slow
def test_lengths_in_tokens_are_drawn_with_the_published_values(tmp_path: Path) -> None:
    speed = {f"cost/tokens_per_second@{n}": 1000.0 * n for n in (256, 4096)}
    table = summary("saidl/hardware", {"standard": speed, "linear": speed})
    ((_, head, body),) = metric_grid.grids(table)
    assert head[1:] == ["256", "512", "1024", "2048", "4096"]
    assert next(r for r in body if r[0] == "standard")[5] == "4,096,001.0 ± 1.4 (802.8)"
    figure = figures.lengths(table)
    assert figure is not None
    hollow = [line for line in figure.axes[0].lines if line.get_markerfacecolor() == "white"]
    assert len(hollow) == 6  # the paper's rows
    assert {line.get_linestyle() for line in hollow} == {":"}
    # A value at one length has no line: its marker alone shows it.
    assert all(line.get_marker() != "None" for line in hollow)
    style.save(figure, tmp_path / "lengths.png", ["png"])
    assert (tmp_path / "lengths.png").read_bytes().startswith(b"\x89PNG")


def test_a_rank_of_zero_is_drawn() -> None:
    ranks = {"val/rank": 1.0, "rank/layer_0": 2.0, "rank/layer_1": -1.0}
    figure = figures.lengths(summary("saidl/lambda", {"xi_001": ranks}))  # a mean of -1 and 1
    assert figure is not None
    (line,) = figure.axes[0].lines
    assert list(line.get_ydata()) == [3.0, 0.0]


def test_a_table_without_lengths_has_no_section_by_length() -> None:
    table = summary("saidl/hybrids", {"baseline": {"val/perplexity": 9.0, "val/loss": 2.0}})
    assert metric_grid.grids(table) == []
    assert "## By length" not in markdown.report(table)
