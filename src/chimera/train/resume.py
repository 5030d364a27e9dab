"""Where the training of a run begins: at a checkpoint of its own, at `ckpt_path=`, or at step 0."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from chimera.config.settings import Optim
from chimera.data.batch.module import DataModule
from chimera.errors import UserError
from chimera.optim.optimizer import rate_factor
from chimera.rundir import checkpoints as files
from chimera.rundir.checkpoint_io import load
from chimera.rundir.corpus_hash import TOKENS, check_text
from chimera.rundir.directory import RunDir
from chimera.rundir.identity import EXTENDED
from chimera.rundir.safe_io import check_fields
from chimera.task.base import Task
from chimera.train.console import say
from chimera.train.ranks import Ranks

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
    path = Path(name)
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
