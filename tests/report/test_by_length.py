"""The report's section by length: keys are read, means are of seeds, the paper's numbers beside."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chimera.config.compose import compose, plain
from chimera.config.tables import jobs, load
from chimera.report import figures, measured, text
from chimera.report.summary import Summary, summarise
from chimera.rundir.directory import RunDir

WORDS = ["scale=smoke"]


def summary(table: str, metrics: dict[str, dict[str, float]]) -> Summary:
    """The table's summary when these rows have run with these metrics, seed by seed larger by 2."""
    for job in jobs(load(table), WORDS, [0, 1]):
        if job.row in metrics:
            folder = RunDir.of(plain(compose(job.overrides))).path
            folder.mkdir(parents=True)
            grown = {key: value + 2 * job.seed for key, value in metrics[job.row].items()}
            (folder / "run.json").write_text(json.dumps({"metrics": grown}))
            (folder / "status.json").write_text('{"state": "DONE"}')
    return summarise(table, WORDS, [0, 1])


@pytest.fixture(autouse=True)
def _runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHIMERA_RUNS", str(tmp_path))


def test_multiples_of_the_trained_length() -> None:
    rope = {"val/loss": 3.0, "val/loss_2x": 4.0, "val/loss_4x": 5.0, "val/accuracy_2x": 0.1}
    found = summary("saidl/positions", {"rope": rope, "learned": {"val/loss": 7.0}})
    ((title, head, body),) = measured.grids(found)
    assert title == "val/loss, by multiples of the trained length"
    assert head == ["row", "1 ×", "2 ×", "4 ×"]
    rows = {row[0]: row[1:] for row in body}
    assert rows["rope"][1] == "5.0 ± 1.4 (6.14731)"
    assert rows["learned"] == ["8.0 ± 1.4 (6.62816)", "–", "–"]
    assert "## By length" in text.report(found)
    assert figures.lengths(found) is None  # losses are not drawn: perplexities are


def test_lengths_in_tokens_are_drawn_beside_the_papers() -> None:
    speed = {f"cost/tokens_per_second@{n}": 1000.0 * n for n in (256, 4096)}
    found = summary("saidl/hardware", {"standard": speed, "linear": speed})
    ((_, head, body),) = measured.grids(found)
    assert head[1:] == ["256", "512", "1024", "2048", "4096"]
    assert next(r for r in body if r[0] == "standard")[5] == "4,096,001.0 ± 1.4 (802.8)"
    drawn = figures.lengths(found)
    assert drawn is not None
    dashed = [line for line in drawn.axes[0].lines if line.get_linestyle() == "--"]
    assert len(dashed) == 6  # the paper's rows
    assert figures.png(drawn).startswith(b"\x89PNG")


def test_other_tables_have_no_such_section() -> None:
    found = summary("saidl/hybrids", {"baseline": {"val/perplexity": 9.0, "val/loss": 2.0}})
    assert measured.grids(found) == []
    assert "## By length" not in text.report(found)
