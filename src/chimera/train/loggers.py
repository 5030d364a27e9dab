"""Loggers of a run, from the group `logger`: W&B offline by default.

A node is a Lightning logger, `{}` is none, and a mapping of nodes is several. A logger that takes
`save_dir` is given the run's directory, and every logger the run's configuration and facts through
`log_hyperparams`. All log under the number of optimiser steps taken.

Every point is also in points.jsonl, at once. A run that goes on gives W&B, metrics.csv and MLflow
the points up to its step again (in MLflow it is another run), and TensorBoard leaves out those past
it: each is one complete run, whatever killed the process before.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import secrets
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.utils import get_object
from lightning.pytorch.loggers import (
    CSVLogger,
    Logger,
    MLFlowLogger,
    TensorBoardLogger,
    WandbLogger,
)
from lightning.pytorch.utilities.rank_zero import rank_zero_only

from chimera import world
from chimera.config.hydra_calls import make
from chimera.config.schema import nodes
from chimera.dotted import flatten
from chimera.program import SWEEP
from chimera.safe_io import LineLog, write_atomic
from chimera.train.check import wandb_tags


@contextlib.contextmanager
def open_loggers(
    node: Any, known: dict[str, Any], folder: Path, step: int = 0
) -> Iterator[list[Logger]]:
    """The chosen loggers, which know the configuration and the facts of the run; closed at the end.

    Of several processes the first one has them.

    Args:
        node: of the group `logger`.
        known: `hyperparameters` of the run.
        folder: of the run.
        step: optimiser steps already taken.
    """
    if not world.is_first():
        yield []
        return
    loggers = [_make(each, folder, step) for _, each in nodes("logger", node)]
    if not loggers and not (folder / POINTS).exists():
        yield []
        return
    with contextlib.closing(Points(folder / POINTS, step)) as points:
        try:
            with warnings.catch_warnings(action="ignore"):  # metrics.csv is made again
                for logger in loggers:
                    logger.log_hyperparams(known)
                    for point in points.kept() if isinstance(logger, REPLAYED) else ():
                        logger.log_metrics(point["point"], point["step"])
            yield [*loggers, points] if loggers else []
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


#: Points of all loggers, one JSON object a line: `{"step": n, "point": {name: number}}`.
POINTS = "points.jsonl"


class Points(Logger):
    """Keeps every point on disk at once.

    Args:
        file: of the run.
        step: optimiser steps already taken; points past it are cut off.
    """

    name = version = None

    def __init__(self, file: Path, step: int) -> None:
        super().__init__()
        self._lines = LineLog(file, lambda line: 0 < step >= _point(line)["step"])

    def kept(self) -> Iterator[dict[str, Any]]:
        """The points that were there."""
        return map(_point, self._lines.kept)

    def log_hyperparams(self, params: Any, *_: Any, **__: Any) -> None:
        """Keep nothing: config.yaml and run.json have them."""

    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        """Append a point."""
        self._lines.write(json.dumps({"step": step or 0, "point": metrics}, default=float))

    def close(self) -> None:
        """No point is logged after this."""
        self._lines.close()


def _point(line: bytes) -> dict[str, Any]:
    """A line of points.jsonl; one of no step where somebody has damaged it."""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        point: dict[str, Any] = json.loads(line)
        if isinstance(point["step"], int) and isinstance(point["point"], dict):
            return point
    return {"step": 0, "point": {}}


#: Loggers that begin anew when a run goes on, so they are given the points up to its step.
REPLAYED = (CSVLogger, MLFlowLogger, WandbLogger)
#: Name of the optimiser step in Lightning's logger.
STEP = "trainer/global_step"


class WandbRun(WandbLogger):
    """One W&B run per run directory, grouped by table and row.

    A run that goes on after a stop stays the same W&B run, and offline its newest folder has all of
    it; the folders before are in `wandb/earlier`. One that is started over becomes a new W&B run.

    Args:
        save_dir: the run's directory.
        project: W&B project.
        online: W&B uploads while the run trains; needs a login.
    """

    def __init__(self, save_dir: str, *, project: str = "chimera", online: bool = False) -> None:
        super().__init__(project=project, save_dir=save_dir, offline=not online)
        self.folder = Path(save_dir)
        self.online = online
        self._step = 0

    @rank_zero_only
    def log_hyperparams(self, params: Any = None, *_: Any, **__: Any) -> None:
        """Start the W&B run with this configuration."""
        import wandb

        task = params["task.name"]
        identifier = self._identifier(fresh=params["overwrite"])
        sweep, keys = os.environ.get(SWEEP, "").partition(":")[::2]
        varied = " ".join(f"{key}={params.get(key)}" for key in keys.split(",") if key)
        self._experiment = wandb.init(
            project=self._project,
            name=self.folder.name,
            id=identifier,
            resume="allow" if self.online else None,
            dir=self.folder,
            mode="online" if self.online else "offline",
            group=params["table"] or sweep or task,
            job_type=params["row"] or varied or task,
            tags=wandb_tags({**params, "task": task}),
            config=params,
            settings=wandb.Settings(silent=True),
        )
        self._experiment.define_metric(STEP)
        self._experiment.define_metric("*", step_metric=STEP, step_sync=True)

    @rank_zero_only
    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        """Log a point; Lightning's `epoch` is `train/epoch`."""
        point = {k: v for k, v in metrics.items() if k != "epoch"}
        self._log(point if step is None else {**point, STEP: step}, step or 0)

    def show_table(self, key: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """See `chimera.train.run_files`."""
        import wandb

        table = wandb.Table(columns=list(columns), data=[list(row) for row in rows])
        self._log({key: table})

    def show_picture(self, key: str, file: Path, step: int) -> None:
        """See `chimera.callback.log.pictures`."""
        import wandb

        self._log({key: wandb.Image(str(file))}, step)

    def summarise(self, facts: Mapping[str, Any]) -> None:
        """Numbers at the end, for W&B's table of runs."""
        self.experiment.summary.update(dict(facts))

    def _log(self, point: dict[str, Any], step: int = 0) -> None:
        """Add to the row of a step; W&B would drop what comes after the row of a later one."""
        self._step = max(self._step, step)
        self.experiment.log(point, step=self._step)

    def _identifier(self, *, fresh: bool) -> str:
        """The W&B id of this run directory; folders that the next one replaces are moved away."""
        file = self.folder / "wandb" / "id"
        if fresh or not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(file, secrets.token_hex(4))
        identifier = file.read_text(encoding="utf-8")
        for before in file.parent.glob(f"offline-run-*-{identifier}"):
            earlier = file.parent / "earlier"
            earlier.mkdir(exist_ok=True)
            # W&B calls a folder by the second in which it began: two may have one name.
            taken = len([*earlier.glob(f"{before.name}*")])
            before.rename(earlier / (f"{before.name}-{taken}" if taken else before.name))
        return identifier


def _make(node: Any, folder: Path, step: int) -> Logger:
    kind = get_object(node["_target_"])
    taken = inspect.signature(kind).parameters
    given: dict[str, Any] = {"save_dir": str(folder)} if "save_dir" in taken else {}
    if step and kind is TensorBoardLogger:
        given["purge_step"] = step + 1  # TensorBoard leaves out the points past the checkpoint
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
