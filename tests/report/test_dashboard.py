"""The W&B workspace and report of a table, built without a network."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from chimera.paths import ROOT
from chimera.report import Summary, dashboard, summarise
from chimera.rundir.identity import identity
from tests.report.runs import make

TABLE, WORDS = "bitnet_qdyt/norms", ["scale=smoke"]


@pytest.fixture(scope="module")
def summary(tmp_path_factory: pytest.TempPathFactory) -> Summary:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CHIMERA_RUNS", str(tmp_path_factory.mktemp("runs")))
        make(TABLE, {("qdyt", 0): 425.2, ("layernorm", 0): 431.2})
        return summarise(TABLE, WORDS, [0])


def every(value: Any, key: str) -> list[Any]:
    """All values of `key` at any depth."""
    if isinstance(value, dict):
        own = [value[key]] if key in value else []
        return own + [found for one in value.values() for found in every(one, key)]
    return [f for one in value for f in every(one, key)] if isinstance(value, list) else []


@pytest.mark.parametrize("make_one", [dashboard.workspace, dashboard.report])
def test_holds_exactly_the_runs_of_the_table(make_one: Any, summary: Summary) -> None:
    spec = dashboard.spec(make_one(summary, "", "chimera"))
    (filters,) = [f for f in every(spec, "filters") if isinstance(f, list) and f]
    assert filters[0]["key"] == {"section": "config", "name": "identity"}
    assert filters[0]["value"] == [identity(cell.config) for cell in summary.cells]
    assert {"section": "config", "name": "row.value"} in every(spec, "grouping")[0]


@pytest.mark.parametrize("make_one", [dashboard.workspace, dashboard.report])
def test_charts_what_runs_log(make_one: Any, summary: Summary) -> None:
    spec = dashboard.spec(make_one(summary, "", "chimera"))
    metrics = {m for found in every(spec, "metrics") for m in found}
    assert {"train/loss", "val/loss", "speed/tokens_per_s", summary.table.metric} <= metrics
    patterns = set(every(spec, "metricRegex"))
    assert {"grad_norm/.*", "lr/.*", "stats/.*", "guard/.*"} <= patterns
    drawn = [c for c in every(spec, "config") if isinstance(c, dict) and "xAxis" in c]
    charts = [c for c in drawn if c.get("groupBy")]
    assert charts
    assert {chart["xAxis"] for chart in charts} == {dashboard.STEP}
    assert {chart["groupBy"] for chart in charts} == {"row.value"}
    (scatter,) = [c for c in drawn if c["xAxis"].startswith("config:")]
    assert scatter["xAxis"] == "config:parameters.value"  # a dot would be read as a level


def test_report_shows_the_table(summary: Summary) -> None:
    text = json.dumps(dashboard.spec(dashboard.report(summary, "", "chimera")), ensure_ascii=False)
    assert "| 425.2 |" in text
    assert "against it" in text


def test_twice_the_same(summary: Summary) -> None:
    for one in (dashboard.workspace, dashboard.report):
        first, second = (dashboard.spec(one(summary, "", "chimera")) for _ in range(2))
        assert first == second


def test_without_a_login_it_is_written_down(tmp_path: Path) -> None:
    kept = {k: v for k, v in os.environ.items() if k != "WANDB_API_KEY"}
    kept |= {"CHIMERA_RUNS": str(tmp_path / "runs"), "HOME": str(tmp_path)}
    kept["WANDB_BASE_URL"] = "http://127.0.0.1:9"  # whoever tried the network would fail here
    words = [TABLE, *WORDS, "seed=0", f"out={tmp_path / 'out'}"]
    ran = subprocess.run(
        [sys.executable, "-m", "chimera.report.dashboard", *words],
        env=kept,
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert ran.returncode == 0, ran.stderr
    assert "wandb login" in ran.stdout
    for name in ("workspace", "report"):
        assert json.loads((tmp_path / f"out/wandb_{name}.json").read_text(encoding="utf-8"))
