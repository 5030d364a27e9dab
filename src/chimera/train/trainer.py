"""Lightning's Trainer of a run: its settings, its making, its fit."""

from __future__ import annotations

import gc
import traceback
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from hydra.utils import instantiate
from lightning.fabric.plugins.environments import LightningEnvironment
from lightning.pytorch import profilers
from lightning.pytorch.callbacks import Callback, ProgressBar
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from chimera import world
from chimera.callback import find, with_method
from chimera.callback.state.loop_control import NEVER, GracefulStop
from chimera.config.settings import Trainer as Settings
from chimera.config.settings import TrainerInSteps, in_steps, number
from chimera.data.batch.module import DataModule
from chimera.errors import Interrupted, UserError, one_line
from chimera.model.compiled import compile_as
from chimera.rundir.checkpoint_io import DAMAGE, CheckedIO
from chimera.rundir.directory import RunDir
from chimera.task.base import Task
from chimera.train.scaler import DeviceScaled

#: Arguments that Lightning gets as they are; null leaves them to Lightning.
PASSED_THROUGH = (
    *("sync_batchnorm", "min_steps", "min_epochs", "benchmark"),
    *("inference_mode", "detect_anomaly", "gradient_clip_algorithm", "limit_predict_batches"),
    *("reload_dataloaders_every_n_epochs", "enable_autolog_hparams"),
)
#: Lightning's profilers, which write `*-profile*` into the run's directory.
PROFILERS: dict[str, Any] = {
    "simple": profilers.SimpleProfiler,
    "advanced": profilers.AdvancedProfiler,
    "pytorch": profilers.PyTorchProfiler,
}


class Unprofiled(profilers.PassThroughProfiler):
    """Nothing is timed. Lightning's own makes a generator for each call of a callback."""

    def profile(self, action_name: str) -> Any:
        return nullcontext(action_name)


def trainer_settings(node: dict[str, Any]) -> Settings:
    """The settings of `trainer=`; torch has as many threads as they say from here on."""
    settings: Settings = instantiate(node, _convert_="all")
    if settings.threads:
        torch.set_num_threads(settings.threads)
    return settings


def training_steps(settings: Settings, data: DataModule) -> TrainerInSteps:
    """The trainer's settings in steps and batches of these data, whose epochs they limit.

    Raises:
        UserError: a share of the batches that is less than one.
    """
    train = data.train_dataloader()
    valid = data.val_dataloader()
    test = data.test_dataloader()
    train.limit(None)
    limit = number("limit_train_batches", settings.limit_train_batches, len(train))
    train.limit(limit, repeat=bool(settings.overfit_batches))
    return in_steps(settings, len(train), valid=len(valid), test=len(test))


def build_trainer(
    precision: str,
    settings: TrainerInSteps,
    directory: RunDir,
    loggers: list[Any],
    callbacks: list[Callback],
) -> pl.Trainer:
    """A Trainer that logs to `loggers` and leaves checkpoints and validation to `callbacks`.

    Args:
        precision: fp32, bf16 or fp16.
        settings: in optimiser steps.
        directory: of the run; callbacks know it as `trainer.default_root_dir`.
        loggers: Lightning's; none is fine.
        callbacks: in the order of their calls.
    """
    given = {name: getattr(settings, name) for name in PASSED_THROUGH}
    make = PROFILERS.get(settings.profiler or "")
    profiler = make(dirpath=directory.path, filename="profile") if make else Unprofiled()
    numbers = precision_arguments(precision, settings.accelerator)
    processes = process_arguments(settings)
    plugins = [CheckedIO(), *numbers.pop("plugins", []), *processes.pop("plugins", [])]
    return pl.Trainer(
        **numbers,
        **processes,
        **{name: value for name, value in given.items() if value is not None},
        profiler=profiler,
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
        deterministic=settings.deterministic,
        logger=loggers,
        callbacks=callbacks,
        log_every_n_steps=settings.log_every_n_steps,
        # Lightning adds one of its own where it is enabled and none is among the callbacks.
        enable_progress_bar=any(isinstance(callback, ProgressBar) for callback in callbacks),
        enable_model_summary=bool(settings.enable_model_summary),
        enable_checkpointing=False,
        num_sanity_val_steps=settings.num_sanity_val_steps or 0,
        use_distributed_sampler=False,
    )


def process_arguments(settings: TrainerInSteps) -> dict[str, Any]:
    """Arguments of Lightning's Trainer for the processes that there are: devices, strategy.

    A process alone is told so. Lightning would look for Slurm, take its signals and hint at srun.
    """
    if world.world_size() == 1:
        return {"devices": 1, "plugins": [LightningEnvironment()]}
    from chimera.train.strategy import arguments  # imports DTensor, which takes half a second

    return arguments(settings.strategy, settings.timeout)


def precision_arguments(precision: str, accelerator: str) -> dict[str, Any]:
    """Arguments of Lightning's Trainer.

    Asked for fp16 on a CPU Lightning silently takes bf16 without a scaler, so a plugin with a
    scaler is given instead.

    Args:
        precision: fp32, bf16 or fp16.
        accelerator: auto, cpu or gpu.

    Raises:
        UserError: the device does not compute fp16.
    """
    if precision == "fp16":
        device = device_of_fp16(accelerator)
        scaler = torch.amp.GradScaler(device)
        return {"plugins": [DeviceScaled("16-mixed", device, scaler)]}
    return {"precision": {"fp32": "32-true", "bf16": "bf16-mixed"}[precision]}


def fit(
    trainer: pl.Trainer,
    task: Task,
    data: DataModule,
    settings: TrainerInSteps,
    checkpoint: Path | None,
) -> None:
    """Train to the last step, or until a callback such as `EarlyStopping` ends the training.

    Args:
        trainer: of the run; its directory has the checkpoints.
        task: to be trained, in place.
        data: of the task.
        settings: of the trainer.
        checkpoint: to go on from; None begins.

    Raises:
        Interrupted: after Ctrl-C, SIGTERM, SIGHUP or `trainer.max_time`, when all is saved.
        UserError: the checkpoint holds something else than this run's state, or a callback of
            Lightning refuses its settings.
    """
    compile_as(settings.compile, task, trainer.strategy.root_device)
    gc.freeze()  # what is there stays to the end: no collection looks at it between steps
    try:
        trainer.fit(task, datamodule=data, ckpt_path=checkpoint, weights_only=True)
    except UserError:
        raise
    except (*DAMAGE, MisconfigurationException) as error:
        files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
        refused = isinstance(error, RuntimeError | MisconfigurationException)
        if refused and "lightning/pytorch/callbacks/" in files[-1]:  # such as an unknown monitor
            raise UserError(one_line(error)[:500]) from error
        if not any(file.endswith("checkpoint_connector.py") for file in files):
            raise
        raise UserError(
            f"{checkpoint} holds something else than the state of this run"
            f" ({type(error).__name__}: {one_line(error)[:120]}); remove it and the run goes on"
            " from the one before, or start over with overwrite=true"
        ) from error
    finally:
        gc.unfreeze()
    late = any(limit.reached for limit in with_method(trainer, "reached"))
    if trainer.global_step < settings.max_steps and (late or find(trainer, GracefulStop).stopping):
        why = f" by trainer.max_time={settings.max_time}, which has to be larger" if late else ""
        where = trainer.default_root_dir
        raise Interrupted(f"stopped at step {trainer.global_step}{why}, saved in {where}")


def device_of_fp16(accelerator: str) -> str:
    """`cuda` or `cpu`, for autocast and the gradient scaler.

    Args:
        accelerator: auto, cpu or gpu.

    Raises:
        UserError: autocast does not compute fp16 there.
    """
    device = "cuda" if torch.cuda.is_available() and accelerator != "cpu" else "cpu"
    if device == "cpu" and accelerator != "cpu" and torch.backends.mps.is_available():
        device = "mps"
    computed = autocast_dtype(device)
    if computed != torch.float16 or device == "mps":
        name = str(computed).removeprefix("torch.")
        raise UserError(
            f"precision=fp16 computes {name} on {device} and has no gradient scaler there;"
            " use precision=bf16 or fp32, or trainer.accelerator=cpu or gpu"
        )
    return device


def autocast_dtype(device: str) -> torch.dtype:
    """Dtype of a matrix product under fp16 autocast on a device."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.autocast(device, torch.float16):
            one = torch.ones(1, 1, device=device)
            return (one @ one).dtype
