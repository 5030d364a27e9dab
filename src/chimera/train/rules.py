"""Validate a trained model by the rules of its parts that the configuration did not choose.

QDyT's mean in evaluation (SPEC N3) is such a rule: the running mean of the paper, or each token's
own. Both are judged on one trained run.
"""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl

from chimera.contract import EvaluatedBy
from chimera.data.batch.module import DataModule
from chimera.task.base import Task

#: Key of a run's record: metrics of the validation by the name of a rule.
OTHER_RULES = "other_rules"


def other_rules(trainer: pl.Trainer, task: Task, data: DataModule) -> dict[str, Any]:
    """What a run's record has of the rules that were not chosen; empty if no part has another.

    All parts that know a rule evaluate by it at once; afterwards they do by the chosen one again.

    Args:
        trainer: has trained and tested the task.
        task: with the weights that were tested.
        data: of the task.
    """
    parts = [part for part in task.model.modules() if isinstance(part, EvaluatedBy)]
    metrics = {}
    for rule in dict.fromkeys(rule for part in parts for rule in part.other_rules()):
        able = [part for part in parts if rule in part.other_rules()]
        for part in able:
            part.evaluate_by(rule)
        try:
            metrics[rule] = dict(trainer.validate(task, datamodule=data, verbose=False)[0])
        finally:
            for part in able:
                part.evaluate_by(None)
    return {OTHER_RULES: metrics} if metrics else {}
