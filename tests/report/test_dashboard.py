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
from chimera.report import dashboard
from chimera.report.summary import Summary, summarise
from chimera.rundir.identity import identity
from tests.report.runs import make

TABLE, OVERRIDES = "bitnet_qdyt/norms", ["scale=smoke"]


@pytest.fixture(scope="module")
def summary(tmp_path_factory: pytest.TempPathFactory) -> Summary:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CHIMERA_RUNS", str(tmp_path_factory.mktemp("runs")))
        make(TABLE, {("qdyt", 0): 425.2, ("layernorm", 0): 431.2})
        return summarise(TABLE, OVERRIDES, [0])


def every(value: Any, key: str) -> list[Any]:
    """All values of `key` at any depth."""
    if isinstance(value, dict):
        here = [value[key]] if key in value else []
        return here + [match for child in value.values() for match in every(child, key)]
    children = value if isinstance(value, list) else []
    return [match for child in children for match in every(child, key)]


@pytest.mark.parametrize("build", [dashboard.workspace, dashboard.report])
def test_filters_are_the_identities_of_the_tables_runs(build: Any, summary: Summary) -> None:
    spec = dashboard.spec(build(summary, "", "chimera"))
    (filters,) = [f for f in every(spec, "filters") if isinstance(f, list) and f]
    assert filters[0]["key"] == {"section": "config", "name": "identity"}
    assert filters[0]["value"] == [identity(cell.config) for cell in summary.cells]
    assert {"section": "config", "name": "row.value"} in every(spec, "grouping")[0]


@pytest.mark.parametrize("build", [dashboard.workspace, dashboard.report])
def test_charts_have_the_metrics_that_runs_log(build: Any, summary: Summary) -> None:
    spec = dashboard.spec(build(summary, "", "chimera"))
    metrics = {m for names in every(spec, "metrics") for m in names}
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
    assert "and disagrees on 0." in text


def test_the_same_summary_gives_the_same_json(summary: Summary) -> None:
    for build in (dashboard.workspace, dashboard.report):
        first, second = (dashboard.spec(build(summary, "", "chimera")) for _ in range(2))
        assert first == second


def test_without_a_login_json_is_written_to_the_folder(tmp_path: Path) -> None:
    env = {k: v for k, v in os.environ.items() if k != "WANDB_API_KEY"}
    env |= {"CHIMERA_RUNS": str(tmp_path / "runs"), "HOME": str(tmp_path)}
    env["WANDB_BASE_URL"] = "http://127.0.0.1:9"  # any use of the network fails
    arguments = [TABLE, *OVERRIDES, "seed=0", f"out={tmp_path / 'out'}"]
    process = subprocess.run(
        [sys.executable, "-m", "chimera", "dashboard", *arguments],
        env=env,
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert process.returncode == 0, process.stderr
    assert "wandb login" in process.stdout
    for name in ("workspace", "report"):
        assert json.loads((tmp_path / f"out/wandb_{name}.json").read_text(encoding="utf-8"))
