"""The whole story of a run, in order; the only file that knows it.

check (done by the command line) → data → model → task → train → validate, test → record
"""

from __future__ import annotations

import contextlib
import logging
import time
import warnings
from typing import Any

import lightning.pytorch as pl
import torch
from hydra.utils import instantiate
from lightning.pytorch.callbacks import Callback
from rich.console import Console

from chimera import plot, summary
from chimera.build import build_model, choose, component_callbacks
from chimera.callback.boundary import Boundary
from chimera.callback.checkpoint import Checkpoints
from chimera.callback.gradients import GradientNorms
from chimera.callback.guard import NanGuard
from chimera.callback.heartbeat import Heartbeat
from chimera.callback.metrics import MetricsLog, peak_memory_gb
from chimera.callback.progress import ProgressDisplay
from chimera.callback.randomness import StatelessRandomness
from chimera.callback.step_log import StepLog
from chimera.callback.steps import Steps
from chimera.callback.stop import GracefulStop
from chimera.callback.validation import NEVER, ValidationSchedule
from chimera.checkpoint import files
from chimera.checkpoint.io import CheckedIO, load
from chimera.data.prepare import Prepared
from chimera.errors import FULL, UserError
from chimera.inherit import causal_of, place
from chimera.loggers import finish, make_loggers
from chimera.optim.groups import groups
from chimera.outcome import report
from chimera.precision import precision_arguments
from chimera.quant.packing import byte_report
from chimera.record import RunDir, identity, write_json
from chimera.settings import Measured
from chimera.settings import Trainer as TrainerSettings
from chimera.task.base import Task
from chimera.traces import epochs
from chimera.weights import start_from


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

    corpus = instantiate(config["data"], _convert_="all")
    kind = instantiate(config["task"], _convert_="all").func
    data = kind.prepare(corpus, instantiate(config["tokenizer"], _convert_="all"))
    task = make_task(config, data.tokenizer.vocab_size, start=True)
    train, valid, test = task.loaders(data, corpus, config["seed"])
    settings = asked.measured(len(train))
    task.total_steps = settings.max_steps
    summary.show(config["name"], groups(task.model, task.optim), task.model, console)

    directory.claim()
    resume = files.prepare(directory.checkpoints, fresh=config["overwrite"])
    if resume.path or resume.passed_over:
        console.print(str(resume), highlight=False, soft_wrap=True)
    directory.start(config, overrides)
    beat = Heartbeat(directory, resume.step, settings.max_steps)
    beat.start()
    data.tokenizer.save(directory.tokenizer)
    task.save_test(test, directory.test_data)
    record = describe(config, data, task)
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
        trainer.fit(task, train, valid, ckpt_path=resume.path, weights_only=True)
        if trainer.global_step < settings.max_steps:
            raise Interrupted(f"stopped at step {trainer.global_step}, saved in {directory.path}")
        if task.final == "best" and checkpoints.best is not None:
            task.load_state_dict(load(checkpoints.best)["state_dict"])
        measured = {
            **trainer.validate(task, valid, verbose=False)[0],
            **trainer.test(task, test, verbose=False)[0],
            **task.baselines(data, valid, settings.limit_val_batches),
            **task.further(trainer, data, corpus),
        }
        task.finish(directory.path)
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
    plot.curves(directory.steps, checkpoints.validations, directory.curves, config["name"])
    beat.stop("DONE")
    report(record, directory, console)
    return record


def make_task(config: dict[str, Any], vocab_size: int, *, start: bool = False) -> Task:
    """The task with its model built in it: the body, its weights, the head, the adapter.

    Args:
        config: checked.
        vocab_size: of the tokenizer.
        start: take the weights of `init_from`; whoever loads a checkpoint next need not.
    """
    choices = choose(config)
    model = build_model(
        instantiate(config["model"], _convert_="all"),
        choices,
        vocab_size=vocab_size,
        causal=causal_of(config["task"]),
        adapt=False,
    )
    if start:
        start_from(model, place(config))
    optim = instantiate(config["optim"], _convert_="all")
    factory = instantiate(config["task"], _convert_="all")
    task = factory(model, optim, config["trainer"]["max_steps"] or 1, vocab_size)
    assert isinstance(task, Task)
    task.meet(instantiate(config["data"], _convert_="all"))
    task.model = choices.adapter(task.model)
    return task


def make_trainer(
    config: dict[str, Any],
    settings: Measured,
    directory: RunDir,
    loggers: list[Any],
    callbacks: list[Callback],
) -> pl.Trainer:
    """Lightning's Trainer; what it would print, log or save by itself is ours to do."""
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
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
    )


def describe(config: dict[str, Any], data: Prepared, task: Task) -> dict[str, Any]:
    """The facts of a run that are known before training."""
    by_component = summary.parameters_by_component(task.model)
    total = sum(by_component.values())
    trained = sum(p.numel() for p in task.model.parameters() if p.requires_grad)
    return {
        "name": config["name"],
        "identity": identity(config),
        "choices": config["choices"],
        "seed": config["seed"],
        "parameters": {"total": total, **by_component},
        "trained": {"parameters": trained, "share": trained / total},
        "bytes": {role: size._asdict() for role, size in byte_report(task.model).items()},
        "tokenizer": {"sha256": data.tokenizer.sha256, "vocab_size": data.tokenizer.vocab_size},
        "data": data.report,
    }


def quiet() -> None:
    """Lightning's tips and hardware notes out of the way; our own log lines shown."""
    for name in ("lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero"):
        logging.getLogger(name).setLevel(logging.WARNING)
    # Loaders count what they hand out; workers are the user's choice; one CPU batch is small.
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    warnings.filterwarnings("ignore", message=".*smaller than the logging interval.*")
    warnings.filterwarnings("ignore", message=".*treespec, LeafSpec.*")
    log = logging.getLogger("chimera")
    if not log.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(message)s"))
        log.addHandler(handler)
        log.setLevel(logging.INFO)
