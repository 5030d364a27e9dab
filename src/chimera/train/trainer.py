"""Lightning's Trainer of a run: settings, precision, plugins."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import torch
from hydra.utils import instantiate
from lightning.pytorch.callbacks import Callback, ProgressBar
from lightning.pytorch.plugins.precision import MixedPrecision

from chimera.callback.state.validation import NEVER
from chimera.config.settings import Trainer as Settings
from chimera.config.settings import TrainerInSteps
from chimera.rundir.checkpoint_io import CheckedIO
from chimera.rundir.directory import RunDir


def trainer_settings(config: dict[str, Any]) -> Settings:
    """The settings of `trainer=`; torch has as many threads as they say from here on."""
    settings: Settings = instantiate(config["trainer"], _convert_="all")
    if settings.threads:
        torch.set_num_threads(settings.threads)
    return settings


def make_trainer(
    config: dict[str, Any],
    settings: TrainerInSteps,
    directory: RunDir,
    loggers: list[Any],
    callbacks: list[Callback],
) -> pl.Trainer:
    """A Trainer that logs to `loggers` and leaves checkpoints and validation to `callbacks`.

    Args:
        config: of the run.
        settings: in optimiser steps.
        directory: of the run; callbacks know it as `trainer.default_root_dir`.
        loggers: Lightning's; none is fine.
        callbacks: in the order of their calls.
    """
    arguments = precision_arguments(config["precision"], settings.accelerator)
    plugins = [CheckedIO(), *arguments.pop("plugins", [])]
    return pl.Trainer(
        **arguments,
        plugins=plugins,
        default_root_dir=directory.path,
        max_steps=settings.max_steps,
        max_epochs=-1,
        accumulate_grad_batches=settings.accumulate_grad_batches,
        gradient_clip_val=settings.gradient_clip_val or None,
        val_check_interval=NEVER,  # its callback says when
        check_val_every_n_epoch=None,
        limit_val_batches=settings.limit_val_batches or 1.0,
        limit_test_batches=settings.limit_test_batches or 1.0,
        accelerator=settings.accelerator,
        devices=settings.devices,
        deterministic=settings.deterministic,
        logger=loggers,
        callbacks=callbacks,
        log_every_n_steps=settings.log_every_n_steps,
        # Lightning adds one of its own where it is enabled and none is among the callbacks.
        enable_progress_bar=any(isinstance(callback, ProgressBar) for callback in callbacks),
        enable_model_summary=False,
        enable_checkpointing=False,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
    )


def precision_arguments(precision: str, accelerator: str) -> dict[str, Any]:
    """Arguments of Lightning's Trainer.

    Asked for fp16 on a CPU Lightning silently takes bf16 without a scaler, so a plugin with a
    scaler is given instead.

    Args:
        precision: fp32, bf16 or fp16.
        accelerator: auto, cpu or gpu.
    """
    if precision == "fp16":
        gpu = torch.cuda.is_available() and accelerator != "cpu"
        device = "cuda" if gpu else "cpu"
        scaler = torch.amp.GradScaler(device)
        return {"plugins": [MixedPrecision("16-mixed", device, scaler)]}
    return {"precision": {"fp32": "32-true", "bf16": "bf16-mixed"}[precision]}
