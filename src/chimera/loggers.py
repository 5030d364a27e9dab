"""Loggers of a run: W&B offline by default, online or CSV or nothing by choice."""

from __future__ import annotations

from typing import Any

from lightning.pytorch.loggers import CSVLogger, Logger, WandbLogger

from chimera.record import RunDir, flat
from chimera.settings import Logger as Settings


def make_loggers(
    settings: Settings, config: dict[str, Any], facts: dict[str, Any], directory: RunDir
) -> list[Logger]:
    """The chosen logger, told the whole configuration and the facts of the run.

    W&B's config carries every choice and setting as a flat key (`mixer`, `optim.lr`), because its
    dashboards group and filter by flat keys only.
    """
    if settings.kind == "csv":
        return [CSVLogger(directory.path, name="", version="metrics")]
    if settings.kind != "wandb":
        return []
    import wandb

    nodes = {name: value for name, value in config.items() if name != "choices"}
    run = wandb.init(
        project=settings.project,
        name=directory.path.name,
        dir=directory.path,
        mode="online" if settings.online else "offline",
        group=config["name"],
        job_type=config["task"]["name"],
        config={**flat(nodes), **config["choices"], **flat(facts)},
        settings=wandb.Settings(silent=True),
    )
    return [WandbLogger(experiment=run)]


def finish(loggers: list[Logger], *, failed: bool) -> None:
    """Close them; without W&B's `finish` two runs of one process would become one."""
    for logger in loggers:
        logger.finalize("failed" if failed else "success")
        if isinstance(logger, WandbLogger):
            logger.experiment.finish(exit_code=int(failed))
