"""Build a W&B workspace and report of a table: `chimera dashboard <paper>/<table>`.

Building them needs no network, saving them needs a login to W&B.
"""

from __future__ import annotations

from typing import Any

import wandb
import wandb_workspaces.reports.v2 as wr
import wandb_workspaces.workspaces as ws
from wandb_workspaces.expr import FilterExpr

from chimera.errors import UserError
from chimera.report import markdown
from chimera.report.table_results import TableResults
from chimera.rundir.identity import identity

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


def workspace(results: TableResults, entity: str, project: str) -> ws.Workspace:
    """Build the workspace: charts of a table's runs, one line per row, mean and spread of seeds."""
    sections = [
        ws.Section(name=name, panels=[_lines(*panel) for panel in panels.items()], is_open=True)
        for name, panels in SECTIONS.items()
    ]
    result = ws.Section(name=results.table.title, panels=_result(results), is_open=True)
    return ws.Workspace(
        entity=entity,
        project=project,
        name=f"{results.table.path}, {results.scale}",
        sections=[result, *sections],
        settings=ws.WorkspaceSettings(x_axis=STEP, max_runs=100),
        runset_settings=ws.RunsetSettings(
            filters=_runs(results),
            groupby=[ws.Config("row")],
            pinned_columns=["config:row.value", "config:seed.value"],
        ),
    )


def report(results: TableResults, entity: str, project: str) -> wr.Report:
    """Build the report: the table with its current values, and charts of its runs."""
    table = results.table
    of_table: Any = {"filters": _runs(results), "groupby": ["config.row"]}
    runs = wr.Runset(entity=entity, project=project, name=table.path, **of_table)
    panels = [_lines(*panel) for section in SECTIONS.values() for panel in section.items()]
    return wr.Report(
        entity=entity,
        project=project,
        title=f"{table.title} ({results.scale})",
        description=table.source,
        blocks=[
            wr.P(f"{table.source}. {table.metric}, {table.better} is better. {table.note}"),
            wr.MarkdownBlock(markdown.table(results)),
            wr.H2("Order of rows"),
            wr.MarkdownBlock(markdown.order(results)),
            wr.H2("Runs"),
            wr.PanelGrid(runsets=[runs], panels=[*_result(results), *panels]),
        ],
        width="fluid",
    )


def save(results: TableResults) -> None:
    """Save both to W&B; print their addresses.

    Raises:
        UserError: not logged in to W&B.
    """
    if not wandb.login(prompt=False):
        raise UserError(
            "a dashboard needs a login to W&B: run wandb login, wandb sync"
            f" {results.cells[0].directory.parent}/*/wandb/offline-run-*, and this command again"
        )
    project = results.cells[0].config["logger"]["project"]
    entity = wandb.Api().default_entity or ""
    print(workspace(results, entity, project).save().url)
    print(report(results, entity, project).save().url)


def _lines(title: str, metrics: str) -> wr.LinePlot:
    """A line chart: one line per row, or per row and metric if `metrics` is a pattern."""
    named: Any = {"metric_regex": metrics} if "*" in metrics else {"y": [metrics]}
    return wr.LinePlot(title=title, x=STEP, max_runs_to_show=100, **named, **BY_ROW)


def _result(results: TableResults) -> list[Any]:
    """Charts of the table's metric: by row with the spread over seeds, and against parameters."""
    metric = results.table.metric
    size = wr.Config("parameters")
    value = wr.SummaryMetric(metric)
    return [
        wr.BarPlot(title=metric, metrics=[metric], **BY_ROW),
        wr.ScatterPlot(title=f"{metric} against parameters", x=size, y=value),
        wr.RunComparer(diff_only="split"),
    ]


def _runs(results: TableResults) -> list[FilterExpr]:
    """Filter for the runs of this table, including runs that another table started."""
    identities = [identity(cell.config) for cell in results.cells]
    return [ws.Config("identity").isin(list(dict.fromkeys(identities)))]
