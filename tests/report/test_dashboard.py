"""The W&B workspace and report of a table, built without a network."""

from __future__ import annotations

import json
from typing import Any

import pytest

from chimera.errors import UserError
from chimera.report import dashboard
from chimera.report.table_results import TableResults, read_results
from chimera.rundir.identity import identity
from tests.report.runs import make

TABLE, OVERRIDES = "bitnet_qdyt/norms", ["scale=smoke"]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> TableResults:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CHIMERA_RUNS", str(tmp_path_factory.mktemp("runs")))
        make(TABLE, {("qdyt", 0): 425.2, ("layernorm", 0): 431.2})
        return read_results(TABLE, OVERRIDES, [0])


def spec(view: Any) -> Any:
    """The JSON that W&B receives."""
    return view._to_model().model_dump(mode="json", by_alias=True, exclude_none=True)


def every(value: Any, key: str) -> list[Any]:
    """All values of `key` at any depth."""
    if isinstance(value, dict):
        here = [value[key]] if key in value else []
        return here + [match for child in value.values() for match in every(child, key)]
    children = value if isinstance(value, list) else []
    return [match for child in children for match in every(child, key)]


@pytest.mark.parametrize("build", [dashboard.workspace, dashboard.report])
def test_charts_have_the_tables_runs_and_the_metrics_that_they_log(
    build: Any, results: TableResults
) -> None:
    found = spec(build(results, "", "chimera"))
    (filters,) = [f for f in every(found, "filters") if isinstance(f, list) and f]
    assert filters[0]["key"] == {"section": "config", "name": "identity"}
    assert filters[0]["value"] == [identity(cell.config) for cell in results.cells]
    assert {"section": "config", "name": "row.value"} in every(found, "grouping")[0]
    metrics = {m for names in every(found, "metrics") for m in names}
    assert {"train/loss", "val/loss", "speed/tokens_per_s", results.table.metric} <= metrics
    assert {"grad_norm/.*", "lr/.*", "stats/.*", "guard/.*"} <= set(every(found, "metricRegex"))
    drawn = [c for c in every(found, "config") if isinstance(c, dict) and "xAxis" in c]
    charts = [c for c in drawn if c.get("groupBy")]
    assert {(chart["xAxis"], chart["groupBy"]) for chart in charts} == {
        (dashboard.STEP, "row.value")
    }
    (scatter,) = [c for c in drawn if c["xAxis"].startswith("config:")]
    assert scatter["xAxis"] == "config:parameters.value"  # a dot would be read as a level


def test_report_shows_the_table(results: TableResults) -> None:
    text = json.dumps(spec(dashboard.report(results, "", "chimera")), ensure_ascii=False)
    assert "| 425.2 |" in text
    assert "and disagrees on 0." in text


def test_without_a_login_one_line_says_what_to_do(
    results: TableResults, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wandb.login", lambda **_: False)
    with pytest.raises(UserError, match="wandb login"):
        dashboard.save(results)
