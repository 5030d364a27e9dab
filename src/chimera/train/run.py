"""The whole story of a run, in order; the only file that knows it.

check (done by the command line) → data → model → task → train → validate, test → record
"""

from __future__ import annotations

import contextlib
import time
from typing import Any

import lightning.pytorch as pl
import torch
from hydra.utils import instantiate
from lightning.pytorch.callbacks import Callback
from rich.console import Console

from chimera.callback.log.gradients import GradientNorms
from chimera.callback.log.heartbeat import Heartbeat
from chimera.callback.log.metrics import MetricsLog, peak_memory_gb
from chimera.callback.log.progress import ProgressDisplay
from chimera.callback.log.step_log import StepLog
from chimera.callback.log.steps import Steps
from chimera.callback.state.checkpoint import Checkpoints
from chimera.callback.state.guard import NanGuard
from chimera.callback.state.randomness import StatelessRandomness
from chimera.callback.state.step_snapshot import Boundary
from chimera.callback.state.stop import GracefulStop
from chimera.callback.state.validation import ValidationSchedule
from chimera.config.settings import Trainer as TrainerSettings
from chimera.errors import FULL, UserError
from chimera.optim.groups import groups
from chimera.rundir import checkpoints as files
from chimera.rundir.atomic import write_json
from chimera.rundir.checkpoint_io import load
from chimera.rundir.directory import RunDir
from chimera.rundir.steps import epochs
from chimera.train import curves, parameters
from chimera.train.build import make_data, make_task
from chimera.train.console import report
from chimera.train.loggers import finish, make_loggers
from chimera.train.record import describe
from chimera.train.trainer import component_callbacks, make_trainer, quiet


class Interrupted(Exception):  # noqa: N818 - a request that was met, no error
    """The run was asked to stop; it is saved and goes on when started again."""


def run(config: dict[str, Any], overrides: list[str]) -> dict[str, Any]:
    """Train as a checked configuration says; returns what run.json holds.

    A directory that holds a finished run is shown, not repeated; an unfinished one goes on.

    Raises:
        Interrupted: after Ctrl-C or SIGTERM, when all is saved.
    """
    quiet()
    console = Console(stderr=True)
    directory = RunDir.of(config)
    if directory.status().get("state") == "DONE" and not config["overwrite"]:
        console.print(f"done already: {directory.path}  (overwrite=true starts it over)")
        record = directory.record()
        report(record, directory, console)
        return record
    began = time.perf_counter()
    asked: TrainerSettings = instantiate(config["trainer"], _convert_="all")
    if asked.threads:
        torch.set_num_threads(asked.threads)
    pl.seed_everything(config["seed"], verbose=False)

    data = make_data(config)
    tokenizer = data.prepared.tokenizer
    task = make_task(config, tokenizer.vocab_size, start=True)
    task.configure_for(data, "fit")
    data.setup()
    settings = asked.measured(len(data.train_dataloader()))
    task.total_steps = settings.max_steps
    parameters.show(config["name"], groups(task.model, task.optim), task.model, console)

    directory.claim()
    resume = files.prepare(directory.checkpoints, fresh=config["overwrite"])
    if resume.path or resume.passed_over:
        console.print(str(resume), highlight=False, soft_wrap=True)
    directory.start(config, overrides)
    beat = Heartbeat(directory, resume.step, settings.max_steps)
    beat.start()
    tokenizer.save(directory.tokenizer)
    data.save_test(directory.test_data)
    record = describe(config, data.prepared, task)
    logger_settings = instantiate(config["logger"], _convert_="all")
    loggers = make_loggers(logger_settings, config, record, directory)
    step_log = StepLog(directory.steps, task.optim.lr, resume.step)
    gradients = GradientNorms(settings.log_every_n_steps)
    progress = ProgressDisplay(
        settings.max_steps, task.optim.lr, settings.progress, settings.log_every_n_steps, console
    )
    schedule, boundary = ValidationSchedule(settings.val_check_interval), Boundary()
    checkpoints = Checkpoints(
        directory.checkpoints, settings, schedule, boundary, task.monitor, task.better
    )
    guard = NanGuard(
        directory.path,
        instantiate(config["guard"], _convert_="all"),
        boundary,
        checkpoints,
        config,
        lambda text: console.print(text, highlight=False, soft_wrap=True, markup=False),
    )
    metrics = MetricsLog(loggers, settings.log_every_n_steps, (gradients.numbers, guard.numbers))
    steps = Steps([step_log, metrics, progress, beat], began)
    callbacks: list[Callback] = [
        StatelessRandomness(config["seed"]),
        *component_callbacks(config),
        gradients,
        steps,
        progress,
        GracefulStop(),
        schedule,
        checkpoints,
        guard,
        boundary,
    ]
    trainer = make_trainer(config, settings, directory, loggers, callbacks)
    if settings.compile:
        task.model.compile()  # in place, so that checkpoints keep their names
    failed = True
    try:
        trainer.fit(task, datamodule=data, ckpt_path=resume.path, weights_only=True)
        if trainer.global_step < settings.max_steps:
            raise Interrupted(f"stopped at step {trainer.global_step}, saved in {directory.path}")
        if task.final == "best" and checkpoints.best is not None:
            task.load_state_dict(load(checkpoints.best)["state_dict"])
        measured = {
            **trainer.validate(task, datamodule=data, verbose=False)[0],
            **trainer.test(task, datamodule=data, verbose=False)[0],
            **task.baselines(data, settings.limit_val_batches),
            **task.extra_metrics(trainer, data),
        }
        task.write_predictions(directory.path)
        failed = False
    except Interrupted as stopped:
        beat.stop("STOPPED", why=str(stopped))
        raise
    except BaseException as error:
        with contextlib.suppress(OSError):  # the disk may be what failed
            beat.stop("FAILED", why=f"{type(error).__name__}: {error}")
        if isinstance(error, OSError) and error.errno in FULL:
            kept = files.newest(directory.checkpoints)
            good = f"{kept.path} (step {kept.step}) is intact" if kept.path else "none was saved"
            raise UserError(
                f"no space left for {directory.path}; last checkpoint: {good};"
                " free some space and start the same command again"
            ) from error
        raise
    finally:
        step_log.close()
        with contextlib.suppress(OSError):
            finish(loggers, failed=failed)
    record |= {
        "metrics": measured,
        "tokens_per_second": steps.tokens_per_second,
        "peak_memory_gb": peak_memory_gb(),
        "wall_seconds": steps.wall_seconds,
        "steps": trainer.global_step,
        "validations": checkpoints.validations,
        "epochs": epochs(directory.steps, checkpoints.validations, checkpoints.scores),
        "skipped": {"not_finite": guard.skipped, "scaler": guard.scaler_skipped},
        "checkpoints": {
            "saves": len(checkpoints.stalls),
            "seconds": sum(checkpoints.stalls),
            "longest": max(checkpoints.stalls, default=0.0),
        },
    }
    write_json(directory.path / "run.json", record)
    curves.curves(directory.steps, checkpoints.validations, directory.curves, config["name"])
    beat.stop("DONE")
    report(record, directory, console)
    return record
