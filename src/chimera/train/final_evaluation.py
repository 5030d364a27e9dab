"""Validate and test a trained model: its metrics, and those by the other rules of its parts.

A part may be evaluated by several rules: QDyT's mean (SPEC N3) is the running mean of the paper, or
each token's own. One trained run is judged by the chosen rule and by each of the others.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl

from chimera.contract import EvaluatedBy
from chimera.data.batch.module import DataModule
from chimera.model.sharding import load_state
from chimera.rundir import checkpoints as files
from chimera.rundir.checkpoint_io import load
from chimera.rundir.directory import RunDir
from chimera.task.base import Task
from chimera.train.ranks import Ranks


def final_metrics(
    trainer: pl.Trainer, task: Task, data: DataModule, batches: int | None, ranks: Ranks
) -> dict[str, float]:
    """Metrics of the trained model, by the checkpoint that the task is judged by.

    Args:
        trainer: has trained the task.
        task: gets the weights of the best checkpoint if its `final` says so.
        data: of the task.
        batches: of a validation; None for all.
        ranks: the processes of the run.
    """
    directory = RunDir(Path(trainer.default_root_dir))
    best = ranks.on_first(lambda: [str(path) for _, path in files.best(directory.checkpoints)])
    if task.final == "best" and best:
        load_state(task, load(Path(best[0]))["state_dict"])
    metrics: dict[str, float] = {
        **trainer.validate(task, datamodule=data, verbose=False)[0],
        **trainer.test(task, datamodule=data, verbose=False)[0],
        **task.baselines(data, batches),
        **task.extra_metrics(trainer, data),
    }
    if trainer.is_global_zero:
        task.write_predictions(directory.path)
    return metrics


def by_other_rules(
    trainer: pl.Trainer, task: Task, data: DataModule
) -> dict[str, dict[str, float]]:
    """Metrics of the validation by each rule that was not chosen; empty if no part has another.

    All parts that know a rule evaluate by it at once; afterwards they do by the chosen one again.

    Args:
        trainer: has trained and tested the task. It runs a validation of its own, so this is no
            callback of its test.
        task: with the weights that were tested.
        data: of the task.
    """
    parts = [part for part in task.model.modules() if isinstance(part, EvaluatedBy)]
    metrics: dict[str, dict[str, Any]] = {}
    for rule in dict.fromkeys(rule for part in parts for rule in part.other_rules()):
        able = [part for part in parts if rule in part.other_rules()]
        for part in able:
            part.evaluate_by(rule)
        try:
            metrics[rule] = dict(trainer.validate(task, datamodule=data, verbose=False)[0])
        finally:
            for part in able:
                part.evaluate_by(None)
    return metrics
