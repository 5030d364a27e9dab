"""Loggers of a run, from the group `logger`: W&B offline by default.

A node is a Lightning logger, `{}` is none, and a mapping of nodes is several. A logger that takes
`save_dir` is given the run's directory, and every logger the run's configuration and facts through
`log_hyperparams`.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.utils import get_object
from lightning.pytorch.loggers import Logger, WandbLogger
from lightning.pytorch.utilities.rank_zero import rank_zero_only

from chimera import world
from chimera.config.hydra_calls import make
from chimera.config.schema import nodes
from chimera.dotted import flatten
from chimera.program import SWEEP
from chimera.rundir.safe_io import write_atomic


@contextlib.contextmanager
def open_loggers(node: Any, known: dict[str, Any], folder: Path) -> Iterator[list[Logger]]:
    """The chosen loggers, which know the configuration and the facts of the run; closed at the end.

    Of several processes the first one has them.

    Args:
        node: of the group `logger`.
        known: `hyperparameters` of the run.
        folder: of the run.
    """
    if not world.is_first():
        yield []
        return
    loggers = [_make(each, folder) for _, each in nodes("logger", node)]
    try:
        for logger in loggers:
            logger.log_hyperparams(known)
        yield loggers
    except BaseException:
        _close(loggers, failed=True)
        raise
    _close(loggers, failed=False)


def summarise(facts: Mapping[str, Any], loggers: Sequence[Logger]) -> None:
    """Give the loggers that take it a summary of the run: its metrics, speed and memory.

    Args:
        facts: contents of run.json.
        loggers: of the run.
    """
    names = ("tokens_per_second", "mfu", "peak_memory_gb", "wall_seconds", "steps")
    summary = {**facts["metrics"], **{name: facts[name] for name in names if name in facts}}
    for logger in loggers:
        if isinstance(logger, WandbRun):
            logger.summarise(summary)


def hyperparameters(config: dict[str, Any], facts: dict[str, Any]) -> dict[str, Any]:
    """Every choice, setting and fact as a flat key (`mixer`, `optim.lr`, `row`).

    Flat, because the dashboards of W&B group and filter by flat keys only.
    """
    table = config.get("table") or {}
    left_out = ("choices", "table", "callbacks")
    settings = {name: value for name, value in config.items() if name not in left_out}
    known = {
        **flatten(settings),
        **config["choices"],
        **flatten({name: fact for name, fact in facts.items() if name != "choices"}),
        "table": table.get("name"),
        "row": table.get("row"),
    }
    # Charts take a dot for a level, and there are none.
    known["parameters"] = known.pop("parameters.total")
    known["bytes"] = known.pop("bytes.total.packed")
    return known


#: Name of the optimiser step in Lightning's logger.
STEP = "trainer/global_step"


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
        self.folder = Path(save_dir)
        self.online = online

    @rank_zero_only
    def log_hyperparams(self, params: Any = None, *_: Any, **__: Any) -> None:
        """Start the W&B run with this configuration."""
        import wandb

        task = params["task.name"]
        sweep, keys = os.environ.get(SWEEP, "").partition(":")[::2]
        varied = " ".join(f"{key}={params.get(key)}" for key in keys.split(",") if key)
        chosen = (task, params["mixer"], f"scale={params['scale']}")
        self._experiment = wandb.init(
            project=self._project,
            name=self.folder.name,
            id=self._identifier(fresh=params["overwrite"]),
            resume="allow" if self.online else None,
            dir=self.folder,
            mode="online" if self.online else "offline",
            group=params["table"] or sweep or task,
            job_type=params["row"] or varied or task,
            tags=[*dict.fromkeys([*chosen, *(params.get("tags") or [])])],
            config=params,
            settings=wandb.Settings(silent=True),
        )
        self._experiment.define_metric(STEP)
        self._experiment.define_metric("*", step_metric=STEP, step_sync=True)

    @rank_zero_only
    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        """Log a point; Lightning's `epoch` is `train/epoch`."""
        super().log_metrics({k: v for k, v in metrics.items() if k != "epoch"}, step)

    def show_table(self, key: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """See `chimera.train.run_files`."""
        import wandb

        table = wandb.Table(columns=list(columns), data=[list(row) for row in rows])
        self.experiment.log({key: table})

    def show_picture(self, key: str, file: Path) -> None:
        """See `chimera.callback.log.pictures`."""
        import wandb

        self.experiment.log({key: wandb.Image(str(file))})

    def summarise(self, facts: Mapping[str, Any]) -> None:
        """Numbers at the end, for W&B's table of runs."""
        self.experiment.summary.update(dict(facts))

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
