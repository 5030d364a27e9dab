"""Loggers of a run: W&B offline by default, online or CSV or nothing by choice."""

from __future__ import annotations

import secrets
from typing import Any

from lightning.pytorch.loggers import CSVLogger, Logger, WandbLogger

from chimera.config.settings import Logger as Settings
from chimera.rundir.atomic import write_atomic
from chimera.rundir.directory import RunDir
from chimera.rundir.identity import flat


def make_loggers(
    settings: Settings, config: dict[str, Any], facts: dict[str, Any], directory: RunDir
) -> list[Logger]:
    """The chosen logger, told the whole configuration and the facts of the run.

    W&B's config carries every choice and setting as a flat key (`mixer`, `optim.lr`, `row`),
    because its dashboards group and filter by flat keys only. A run that goes on after a stop stays
    the same W&B run; one that is started over becomes a new one.
    """
    if settings.kind == "csv":
        return [CSVLogger(directory.path, name="", version="metrics")]
    if settings.kind != "wandb":
        return []
    import wandb

    place = config.get("table") or {}
    nodes = {name: value for name, value in config.items() if name not in ("choices", "table")}
    run = wandb.init(
        project=settings.project,
        name=directory.path.name,
        id=_id(directory, fresh=config["overwrite"]),
        resume="allow" if settings.online else None,
        dir=directory.path,
        mode="online" if settings.online else "offline",
        group=place.get("name", config["task"]["name"]),
        job_type=place.get("row", config["task"]["name"]),
        config={
            **flat(nodes),
            **config["choices"],
            **flat(facts),
            "table": place.get("name"),
            "row": place.get("row"),
            # Charts take a dot for a level, and there are none.
            "parameters": facts["parameters"]["total"],
            "bytes": facts["bytes"]["total"]["packed"],
        },
        settings=wandb.Settings(silent=True),
    )
    return [WandbLogger(experiment=run)]


def finish(loggers: list[Logger], *, failed: bool) -> None:
    """Close them; without W&B's `finish` two runs of one process would become one."""
    for logger in loggers:
        logger.finalize("failed" if failed else "success")
        if isinstance(logger, WandbLogger):
            logger.experiment.finish(exit_code=int(failed))


def _id(directory: RunDir, *, fresh: bool) -> str:
    """The W&B id of this run directory."""
    file = directory.path / "wandb" / "id"
    if fresh or not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(file, secrets.token_hex(4))
    return file.read_text(encoding="utf-8")
