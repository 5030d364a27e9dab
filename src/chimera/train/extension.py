"""What `extend=true` does to a run's rates (`chimera.rundir.extend`): a callback and a message."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback
from torch.optim.lr_scheduler import LambdaLR

from chimera.config.settings import Optim
from chimera.errors import UserError
from chimera.optim.optimizer import rate_factor
from chimera.rundir.checkpoints import ResumePoint
from chimera.rundir.extend import EXTENDED


class RatesOfSchedule(Callback):
    """Sets the rates that the schedule has at the step that training resumes from.

    A checkpoint holds the rates of the schedule that it was saved under.
    """

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        for config in trainer.lr_scheduler_configs:
            schedule = config.scheduler
            if not isinstance(schedule, LambdaLR):
                continue
            rates = [
                base * factor(schedule.last_epoch)
                for base, factor in zip(schedule.base_lrs, schedule.lr_lambdas, strict=True)
            ]
            for group, rate in zip(schedule.optimizer.param_groups, rates, strict=True):
                group["lr"] = rate
            schedule._last_lr = rates


def announcement(config: dict[str, Any], optim: Optim, resume: ResumePoint) -> str:
    """Line that says how far a run is extended and what happens to its rates.

    Args:
        config: with its list of extensions.
        optim: settings of the schedule.
        resume: checkpoint that the run goes on from.

    Raises:
        UserError: the checkpoint of the run's last step is gone.
    """
    last = config[EXTENDED][-1]
    before, after = last["from"], last["to"]
    if resume.step < before:
        raise UserError(
            f"the checkpoint of step {before}, the run's last, is missing, so that the run cannot"
            f" be extended ({resume}); overwrite=true starts it over"
        )
    old, new = (rate_factor(optim, steps)(before) for steps in (before, after))
    return (
        f"extending from {before} to {after} steps: from step {before + 1} on, rates are those of"
        f" a schedule over {after} steps, so their factor goes from {old:.3g} to {new:.3g}"
    )
