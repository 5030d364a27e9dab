"""What `extend=true` does to a run's learning rates (`chimera.rundir.directory`)."""

from __future__ import annotations

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback
from torch.optim.lr_scheduler import LambdaLR


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
