"""The whole story of a run, in order; the only file that knows it.

check (done by the command line) → data → model → task → train → validate, test → record
"""

from __future__ import annotations

import logging
import time
import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from hydra.utils import instantiate
from lightning.pytorch.callbacks import Callback
from rich.console import Console

from chimera import plot, summary
from chimera.build import build_model, choose, component_callbacks
from chimera.callback.checkpoint import Checkpoints
from chimera.callback.metrics import MetricsLog, peak_memory_gb
from chimera.callback.progress import ProgressDisplay
from chimera.callback.randomness import StatelessRandomness
from chimera.callback.step_log import StepLog
from chimera.callback.steps import Steps
from chimera.callback.stop import GracefulStop
from chimera.data.prepare import Prepared, prepare
from chimera.loggers import finish, make_loggers
from chimera.optim.groups import groups
from chimera.record import RunDir, identity, write_json
from chimera.settings import Trainer as TrainerSettings
from chimera.task.base import Task

#: Ours to Lightning's names.
PRECISION: dict[str, Any] = {"fp32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}


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
    settings: TrainerSettings = instantiate(config["trainer"], _convert_="all")
    if settings.threads:
        torch.set_num_threads(settings.threads)
    pl.seed_everything(config["seed"], verbose=False)

    corpus = instantiate(config["data"], _convert_="all")
    data = prepare(corpus, instantiate(config["tokenizer"], _convert_="all"))
    task = make_task(config, data.tokenizer.vocab_size)
    train, valid, test = task.loaders(data, corpus, config["seed"])
    summary.show(config["name"], groups(task.model, task.optim), task.model, console)

    resume = None if config["overwrite"] else directory.resumable()
    resumed_step = _step_of(resume) if resume else 0
    if resume:
        console.print(f"resuming from {resume} at step {resumed_step}")
    directory.start(config, overrides)
    data.tokenizer.save(directory.tokenizer)
    task.save_test(test, directory.test_data)
    record = describe(config, data, task)
    logger_settings = instantiate(config["logger"], _convert_="all")
    loggers = make_loggers(logger_settings, config, record, directory)
    step_log = StepLog(directory.steps, task.optim.lr, resumed_step)
    metrics = MetricsLog(loggers, settings.log_every_n_steps)
    progress = ProgressDisplay(
        settings.max_steps, task.optim.lr, settings.progress, settings.log_every_n_steps, console
    )
    checkpoints = Checkpoints(directory.checkpoints, settings.checkpoint_every_n_steps)
    callbacks: list[Callback] = [
        StatelessRandomness(config["seed"]),
        *component_callbacks(config),
        Steps([step_log, metrics, progress]),
        progress,
        GracefulStop(),
        checkpoints,
    ]
    trainer = make_trainer(config, settings, directory, loggers, callbacks)
    if settings.compile:
        task.model.compile()  # in place, so that checkpoints keep their names
    failed = True
    try:
        trainer.fit(task, train, valid, ckpt_path=resume, weights_only=True if resume else None)
        if trainer.global_step < settings.max_steps:
            raise Interrupted(f"stopped at step {trainer.global_step}, saved in {directory.path}")
        measured = {
            **trainer.validate(task, valid, verbose=False)[0],
            **trainer.test(task, test, verbose=False)[0],
            **task.baselines(data, valid, settings.limit_val_batches),
        }
        failed = False
    except Interrupted as stopped:
        directory.mark("STOPPED", why=str(stopped))
        raise
    except BaseException as error:
        directory.mark("FAILED", why=f"{type(error).__name__}: {error}")
        raise
    finally:
        step_log.close()
        finish(loggers, failed=failed)
    record |= {
        "metrics": measured,
        "tokens_per_second": metrics.tokens_per_second,
        "peak_memory_gb": peak_memory_gb(),
        "wall_seconds": time.perf_counter() - began,
        "steps": trainer.global_step,
        "validations": checkpoints.validations,
    }
    write_json(directory.path / "run.json", record)
    plot.curves(directory.steps, checkpoints.validations, directory.curves, config["name"])
    directory.mark("DONE")
    report(record, directory, console)
    return record


def make_task(config: dict[str, Any], vocab_size: int) -> Task:
    """The task with its model built in it."""
    factory = instantiate(config["task"], _convert_="all")
    model = build_model(
        instantiate(config["model"], _convert_="all"),
        choose(config),
        vocab_size=vocab_size,
        causal=factory.func.causal,
    )
    optim = instantiate(config["optim"], _convert_="all")
    task = factory(model, optim, config["trainer"]["max_steps"], vocab_size)
    assert isinstance(task, Task)
    return task


def make_trainer(
    config: dict[str, Any],
    settings: TrainerSettings,
    directory: RunDir,
    loggers: list[Any],
    callbacks: list[Callback],
) -> pl.Trainer:
    """Lightning's Trainer; what it would print, log or save by itself is ours to do."""
    accumulate = settings.accumulate_grad_batches
    interval = settings.val_check_interval or settings.max_steps
    return pl.Trainer(
        default_root_dir=directory.path,
        max_steps=settings.max_steps,
        max_epochs=-1,
        accumulate_grad_batches=accumulate,
        gradient_clip_val=settings.gradient_clip_val or None,
        val_check_interval=interval * accumulate,
        check_val_every_n_epoch=None,
        limit_val_batches=settings.limit_val_batches or 1.0,
        limit_test_batches=settings.limit_test_batches or 1.0,
        accelerator=settings.accelerator,
        devices=settings.devices,
        deterministic=settings.deterministic,
        precision=PRECISION[config["precision"]],
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
    return {
        "name": config["name"],
        "identity": identity(config),
        "choices": config["choices"],
        "seed": config["seed"],
        "parameters": {"total": sum(by_component.values()), **by_component},
        "tokenizer": {"sha256": data.tokenizer.sha256, "vocab_size": data.tokenizer.vocab_size},
        "data": data.report,
    }


def report(record: dict[str, Any], directory: RunDir, console: Console) -> None:
    """The end of the story, in a few lines."""
    found = record["metrics"]
    unigram = found["val/unigram_perplexity"]
    console.print(
        f"validation perplexity {found['val/perplexity']:.1f}, of a unigram model on the same"
        f" tokens {unigram:.1f}: {unigram / found['val/perplexity']:.2f} times lower\n"
        f"test perplexity {found['test/perplexity']:.1f}, accuracy {found['test/accuracy']:.1%}\n"
        f"{record['tokens_per_second']:,.0f} tokens/s, peak memory"
        f" {record['peak_memory_gb']:.2f} GB, {record['wall_seconds']:.0f} s in all\n"
        f"{directory.path}",
        highlight=False,
        soft_wrap=True,
    )


def quiet() -> None:
    """Lightning's tips and hardware notes out of the way; our own log lines shown."""
    for name in ("lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero"):
        logging.getLogger(name).setLevel(logging.WARNING)
    # Loaders count what they hand out; workers are the user's choice; one CPU batch is small.
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    warnings.filterwarnings("ignore", message=".*treespec, LeafSpec.*")
    log = logging.getLogger("chimera")
    if not log.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(message)s"))
        log.addHandler(handler)
        log.setLevel(logging.INFO)


def _step_of(checkpoint: Path) -> int:
    return int(torch.load(checkpoint, weights_only=True, mmap=True)["global_step"])
