"""Go on with a run's training from a checkpoint, or bring the run back to be evaluated.

Training begins at a checkpoint of the run's own, at `ckpt_path=`, or at step 0.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import lightning.pytorch as pl
from hydra.utils import get_object
from lightning.pytorch.callbacks import Callback
from torch.optim.lr_scheduler import LambdaLR

from chimera.config.hydra_calls import one_line
from chimera.config.settings import Optim
from chimera.config.settings import Trainer as Settings
from chimera.config.trusted_config import recorded, trusted_model
from chimera.data.batch.module import DataModule
from chimera.data.tokenizer.base import Tokenizer
from chimera.data.tokenizer.base import load as load_tokenizer
from chimera.errors import UserError
from chimera.optim.optimizer import rate_factor
from chimera.rundir import checkpoints as files
from chimera.rundir.checkpoint_io import DAMAGE, load
from chimera.rundir.directory import RunDir
from chimera.rundir.identity import EXTENDED, TOKENS, check_text
from chimera.safe_io import check_fields, expanded
from chimera.task.base import Task
from chimera.train.build import build_task
from chimera.train.console import quiet, say
from chimera.train.ranks import Ranks
from chimera.train.trainer import trainer_settings

#: What a checkpoint that training goes on from holds beside the weights.
STATE = {"global_step", "loops", "optimizer_states", "lr_schedulers"}


def lock_and_resume(
    ranks: Ranks,
    directory: RunDir,
    config: dict[str, Any],
    overrides: list[str],
    data: DataModule,
    task: Task,
) -> tuple[Path | None, int]:
    """Lock a run's directory and write what is known before training.

    Args:
        ranks: of which rank 0 does so.
        directory: of the run.
        config: of the run, with its extensions.
        overrides: of the command line.
        data: of the run.
        task: that will be trained.

    Returns:
        The checkpoint to go on from, if there is one, and the steps that the run has taken.

    Raises:
        UserError: another process trains this run, or its text or checkpoint does not fit.
    """

    def on_first() -> tuple[str, int]:
        tokens = data.prepared.report.get(TOKENS)
        if not config["overwrite"]:
            check_text(directory.path, tokens)
        origin = starting_point(config["ckpt_path"], directory, config["overwrite"], data, task)
        directory.lock()
        if directory.is_done(config) and not config["overwrite"]:
            raise UserError(f"another process has finished {directory.path} in the meantime")
        resume = files.prepare(directory.checkpoints, fresh=config["overwrite"])
        if resume.path or resume.rejected:
            say(str(resume))
        if EXTENDED in config:
            say(announcement(config[EXTENDED][-1], task.optim, resume))
        directory.start(config, overrides, {TOKENS: tokens} if tokens else {})
        return str(resume.path or origin or ""), resume.step

    path, step = ranks.on_first(on_first)
    if not directory.path.is_dir():
        raise UserError(
            f"{socket.gethostname()} cannot see run_dir={directory.path}; the machines of a run"
            " have to share a file system, so name a folder there"
        )
    return Path(path) if path else None, step


def starting_point(
    name: str | None, directory: RunDir, overwrite: bool, data: DataModule, task: Task
) -> Path | None:
    """The checkpoint of `ckpt_path=`, checked; None without one.

    It is data, whoever made it: only tensors and plain values are read.

    Args:
        name: of the checkpoint.
        directory: of the run; its own checkpoints come first.
        overwrite: its own checkpoints do not count.
        data: of the run, whose position the checkpoint holds.
        task: that will be trained.

    Raises:
        UserError: the checkpoint cannot be gone on from.
    """
    if name is None:
        return None
    path = expanded(name)
    if not overwrite and files.newest(directory.checkpoints).path is not None:
        return path
    saved = load(path)
    if missing := sorted(STATE - set(saved)):
        raise UserError(
            f"ckpt_path={path} has no {', '.join(missing)}, so training cannot go on from it;"
            " init_from=<file> starts from its weights"
        )
    check_fields(saved, {"global_step": int}, path)
    here = task.state_dict()
    there = saved["state_dict"]
    wrong = [k for k, v in here.items() if getattr(there.get(k), "shape", None) != v.shape]
    if wrong := [*wrong, *sorted(set(there) - set(here))]:
        raise UserError(
            f"ckpt_path={path} is of another model: {wrong[0]} differs; use its settings"
        )
    if saved["global_step"] >= task.total_steps:
        raise UserError(
            f"ckpt_path={path} is of step {saved['global_step']}, and trainer.max_steps is"
            f" {task.total_steps}; set a larger one"
        )
    for state in _loader_states(saved["loops"]):
        data.train_dataloader().check_state(state)
    return path


def _loader_states(node: Any) -> Iterator[dict[str, Any]]:
    """States of our loaders anywhere in the state of Lightning's loops."""
    if isinstance(node, dict):
        if {"epoch", "batch_size", "samples", "seed"} <= set(node):
            yield node
        for value in node.values():
            yield from _loader_states(value)
    elif isinstance(node, list):
        for value in node:
            yield from _loader_states(value)


def announcement(extension: dict[str, Any], optim: Optim, resume: files.ResumePoint) -> str:
    """Line that says how far a run is extended and what happens to its rates.

    Args:
        extension: the last one of `config.yaml`.
        optim: settings of the schedule.
        resume: checkpoint that the run goes on from.

    Raises:
        UserError: the checkpoint of the run's last step is gone.
    """
    before = extension["from"]
    after = extension["to"]
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


#: `newest`: of the valid ones, that with the most steps; `best`, `last`: by their links; `tested`:
#: the one that the final test was made with, the best or the newest as the task says.
Which = Literal["newest", "best", "last", "tested"]


@dataclass(frozen=True)
class Restored:
    """A run that was brought back.

    Args:
        config: of the run.
        settings: of its trainer; torch has as many threads as they say.
        tokenizer: of the run.
        task: in training mode, on the CPU, with the weights of the checkpoint.
        step: optimiser steps taken by the checkpoint; 0 without one.
    """

    config: dict[str, Any]
    settings: Settings
    tokenizer: Tokenizer
    task: Task
    step: int


def restore(
    directory: RunDir,
    which: Which | Path | None = "tested",
    *,
    trust: bool = False,
    training: bool = False,
) -> Restored:
    """Build a run's task and load its weights. Nothing is written.

    Args:
        directory: of the run, whoever made it: its files are data (`config.trusted_config`).
        which: the checkpoint; None builds the task without one.
        trust: load the Hugging Face model that the run's configuration names, if it has to be.
        training: keep the optimiser and the schedule of the configuration.

    Raises:
        UserError: no run, no such checkpoint, weights that do not fit the configuration, or files
            that are more than data.
    """
    quiet()
    config = recorded(directory, training=training)
    config["model"] = trusted_model(config, directory.path, f"run={directory.path}", trust=trust)
    path = None if which is None else checkpoint(directory, config, which)
    settings = trainer_settings(config["trainer"])
    tokenizer = load_tokenizer(directory.tokenizer)
    with one_line():
        task = build_task(config, tokenizer.vocab_size)
    step = 0
    if path is not None:
        saved = load(path)
        try:
            task.load_state_dict(saved["state_dict"])
        except DAMAGE as error:  # torch lists every tensor, a line each
            why = " ".join(str(error).split())[:200]
            raise UserError(f"{path} does not fit the run's config.yaml: {why}") from error
        check_fields(saved, {"global_step": int}, path)
        step = saved["global_step"]
    return Restored(config, settings, tokenizer, task, step)


def checkpoint(directory: RunDir, config: dict[str, Any], which: Which | Path) -> Path:
    """The file of a run's checkpoint.

    Raises:
        UserError: there is none.
    """
    if isinstance(which, Path):
        return which
    best = directory.checkpoints / "best.ckpt"
    if which == "tested":
        final = get_object(config["task"]["_target_"]).final
        which = "best" if final == "best" and best.exists() else "newest"
    if which == "newest":
        newest = files.newest(directory.checkpoints)
        if newest.path is None:
            raise UserError(f"run={directory.path}: {newest}")
        if newest.rejected:
            say(str(newest))
        return newest.path
    link = directory.checkpoints / f"{which}.ckpt"
    if not link.exists():
        raise UserError(f"run={directory.path} has no checkpoint yet ({link} is missing)")
    return link


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
