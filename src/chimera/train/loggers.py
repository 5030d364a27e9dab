"""Loggers of a run, from the group `logger`: W&B offline by default.

A node is a Lightning logger, `{}` is none, and a mapping of nodes is several. A logger that takes
`save_dir` is given the run's directory, and every logger the run's configuration and facts through
`log_hyperparams`.
"""

from __future__ import annotations

import contextlib
import inspect
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hydra.utils import get_object
from lightning.pytorch.loggers import Logger, WandbLogger
from lightning.pytorch.utilities.rank_zero import rank_zero_only

from chimera import world
from chimera.config.make import make
from chimera.config.schema import nodes
from chimera.rundir.atomic import write_atomic
from chimera.rundir.directory import RunDir
from chimera.rundir.identity import flatten


@contextlib.contextmanager
def open_loggers(
    config: dict[str, Any], facts: dict[str, Any], directory: RunDir
) -> Iterator[list[Logger]]:
    """The chosen loggers, which know the configuration and the facts of the run; closed at the end.

    Of several processes the first one has them.

    Args:
        config: of the run.
        facts: what run.json holds before training.
        directory: of the run.
    """
    if not world.is_first():
        yield []
        return
    known = hyperparameters(config, facts)
    loggers = [_make(node, directory.path) for _, node in nodes("logger", config["logger"])]
    try:
        for logger in loggers:
            logger.log_hyperparams(known)
        yield loggers
    except BaseException:
        _close(loggers, failed=True)
        raise
    _close(loggers, failed=False)


def hyperparameters(config: dict[str, Any], facts: dict[str, Any]) -> dict[str, Any]:
    """Every choice, setting and fact as a flat key (`mixer`, `optim.lr`, `row`).

    Flat, because the dashboards of W&B group and filter by flat keys only.
    """
    table = config.get("table") or {}
    left_out = ("choices", "table", "callbacks")
    settings = {name: value for name, value in config.items() if name not in left_out}
    return {
        **flatten(settings),
        **config["choices"],
        **flatten(facts),
        "table": table.get("name"),
        "row": table.get("row"),
        # Charts take a dot for a level, and there are none.
        "parameters": facts["parameters"]["total"],
        "bytes": facts["bytes"]["total"]["packed"],
    }


class WandbRun(WandbLogger):
    """One W&B run per run directory, grouped by table and row.

    A run that goes on after a stop stays the same W&B run; one that is started over becomes a new
    one.

    Args:
        save_dir: the run's directory.
        project: W&B project.
        online: W&B uploads while the run trains; needs a login.
    """

    def __init__(self, save_dir: str, *, project: str = "chimera", online: bool = False) -> None:
        super().__init__(project=project, save_dir=save_dir, offline=not online)
        self.folder, self.online = Path(save_dir), online

    @rank_zero_only
    def log_hyperparams(self, params: Any = None, *_: Any, **__: Any) -> None:
        """Start the W&B run with this configuration."""
        import wandb

        task = params["task.name"]
        self._experiment = wandb.init(
            project=self._project,
            name=self.folder.name,
            id=self._identifier(fresh=params["overwrite"]),
            resume="allow" if self.online else None,
            dir=self.folder,
            mode="online" if self.online else "offline",
            group=params["table"] or task,
            job_type=params["row"] or task,
            tags=params.get("tags"),
            config=params,
            settings=wandb.Settings(silent=True),
        )

    def _identifier(self, *, fresh: bool) -> str:
        """The W&B id of this run directory."""
        file = self.folder / "wandb" / "id"
        if fresh or not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(file, secrets.token_hex(4))
        return file.read_text(encoding="utf-8")


def _make(node: Any, folder: Path) -> Logger:
    taken = inspect.signature(get_object(node["_target_"])).parameters
    given = {"save_dir": str(folder)} if "save_dir" in taken else {}
    logger = make(node, **given)
    assert isinstance(logger, Logger)
    return logger


def _close(loggers: list[Logger], *, failed: bool) -> None:
    """Without W&B's `finish` two runs of one process would become one."""
    for logger in loggers:
        with contextlib.suppress(OSError):  # the disk may be what failed
            logger.finalize("failed" if failed else "success")
            if isinstance(logger, WandbLogger):
                logger.experiment.finish(exit_code=int(failed))
