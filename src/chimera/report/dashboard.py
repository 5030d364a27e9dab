"""Build a W&B workspace and report of a table: `chimera dashboard <paper>/<table>`.

Building them needs no network. With a login to W&B they are saved there; without a login the JSON
that W&B would receive is written to the report's folder.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import wandb
import wandb_workspaces.reports.v2 as wr
import wandb_workspaces.workspaces as ws
from wandb_workspaces.expr import FilterExpr

from chimera.report import markdown
from chimera.report.summary import Summary
from chimera.report.write import report_folder
from chimera.rundir.identity import identity
from chimera.rundir.safe_io import make_folder, write_json

#: Name of the optimiser step in Lightning's logger.
STEP = "trainer/global_step"
#: Panels by section: title, and a metric or a pattern of metrics.
SECTIONS = {
    "Learning": {"training loss": "train/loss", "validation loss": "val/loss"},
    "Gradients": {"gradient norm": "train/grad_norm", "by component": "grad_norm/.*"},
    "Learning rates": {"by component": "lr/.*"},
    "Experts and gates": {"load, gates, sparsity": "stats/.*", "auxiliary losses": "aux/.*"},
    "Speed": {"tokens/s": "speed/tokens_per_s", "peak memory (GB)": "speed/peak_memory_gb"},
    "Trouble": {"skipped steps": "guard/.*"},
}
#: How runs are put together in a chart: mean and spread over the seeds of a row.
BY_ROW: Any = {
    "groupby": wr.Config("row"),
    "groupby_aggfunc": "mean",
    "groupby_rangefunc": "stddev",
}


def workspace(summary: Summary, entity: str, project: str) -> ws.Workspace:
    """Build the workspace: charts of a table's runs, one line per row, mean and spread of seeds."""
    sections = [
        ws.Section(name=name, panels=[_lines(*panel) for panel in panels.items()], is_open=True)
        for name, panels in SECTIONS.items()
    ]
    result = ws.Section(name=summary.table.title, panels=_result(summary), is_open=True)
    return ws.Workspace(
        entity=entity,
        project=project,
        name=f"{summary.table.path}, {summary.scale}",
        sections=[result, *sections],
        settings=ws.WorkspaceSettings(x_axis=STEP, max_runs=100),
        runset_settings=ws.RunsetSettings(
            filters=_runs(summary),
            groupby=[ws.Config("row")],
            pinned_columns=["config:row.value", "config:seed.value"],
        ),
    )


def report(summary: Summary, entity: str, project: str) -> wr.Report:
    """Build the report: the table with its current values, and charts of its runs."""
    table = summary.table
    of_table: Any = {"filters": _runs(summary), "groupby": ["config.row"]}
    runs = wr.Runset(entity=entity, project=project, name=table.path, **of_table)
    panels = [_lines(*panel) for section in SECTIONS.values() for panel in section.items()]
    return wr.Report(
        entity=entity,
        project=project,
        title=f"{table.title} ({summary.scale})",
        description=table.source,
        blocks=[
            wr.P(f"{table.source}. {table.metric}, {table.better} is better. {table.note}"),
            wr.MarkdownBlock(markdown.table(summary)),
            wr.H2("Order of rows"),
            wr.MarkdownBlock(markdown.order(summary)),
            wr.H2("Runs"),
            wr.PanelGrid(runsets=[runs], panels=[*_result(summary), *panels]),
        ],
        width="fluid",
    )


def spec(view: ws.Workspace | wr.Report) -> dict[str, Any]:
    """The JSON that W&B would receive, without the random ids of panels."""
    model = _without_ids(view._to_model().model_dump(mode="json", by_alias=True, exclude_none=True))
    assert isinstance(model, dict)
    return model


def save(summary: Summary, out: Path | None = None) -> None:
    """Save both to W&B, or write both to `out` or the report's folder; print where."""
    project = summary.cells[0].config["logger"]["project"]
    if wandb.login(prompt=False):
        entity = wandb.Api().default_entity or ""
        print(workspace(summary, entity, project).save().url)
        print(report(summary, entity, project).save().url)
        return
    folder = out or report_folder(summary)
    make_folder(folder, of=folder, key="out")
    for name, build in (("workspace", workspace), ("report", report)):
        write_json(folder / f"wandb_{name}.json", spec(build(summary, "", project)))
    print(
        f"not logged in to W&B: workspace and report are in {folder}; to upload them, run"
        f" wandb login, wandb sync {summary.cells[0].directory.parent}/*/wandb/offline-run-*"
        " and this command again"
    )


def _lines(title: str, metrics: str) -> wr.LinePlot:
    """A line chart: one line per row, or per row and metric if `metrics` is a pattern."""
    named: Any = {"metric_regex": metrics} if "*" in metrics else {"y": [metrics]}
    return wr.LinePlot(title=title, x=STEP, max_runs_to_show=100, **named, **BY_ROW)


def _result(summary: Summary) -> list[Any]:
    """Charts of the table's metric: by row with the spread over seeds, and against parameters."""
    metric = summary.table.metric
    size = wr.Config("parameters")
    value = wr.SummaryMetric(metric)
    return [
        wr.BarPlot(title=metric, metrics=[metric], **BY_ROW),
        wr.ScatterPlot(title=f"{metric} against parameters", x=size, y=value),
        wr.RunComparer(diff_only="split"),
    ]


def _runs(summary: Summary) -> list[FilterExpr]:
    """Filter for the runs of this table, including runs that another table started."""
    identities = [identity(cell.config) for cell in summary.cells]
    return [ws.Config("identity").isin(list(dict.fromkeys(identities)))]


def _without_ids(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_ids(v) for k, v in value.items() if k not in ("id", "__id__")}
    return [_without_ids(item) for item in value] if isinstance(value, list) else value
