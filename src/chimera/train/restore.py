"""Bring a run back from its directory: configuration, tokenizer, and the task with its weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hydra.utils import get_object

from chimera.config.hydra_calls import one_line
from chimera.config.settings import Trainer as Settings
from chimera.config.trusted_config import recorded, trusted_model
from chimera.data.tokenizer.base import Tokenizer
from chimera.data.tokenizer.base import load as load_tokenizer
from chimera.errors import UserError
from chimera.rundir import checkpoints as files
from chimera.rundir.checkpoint_io import DAMAGE, load
from chimera.rundir.directory import RunDir
from chimera.rundir.safe_io import check_fields
from chimera.task.base import Task
from chimera.train.build import build_task
from chimera.train.console import quiet, say
from chimera.train.trainer import trainer_settings

#: `newest`: of the valid ones, that with the most steps; `best`, `last`: by their links; `tested`:
#: the one that the final test was made with, the best or the newest as the task says.
Which = Literal["newest", "best", "last", "tested"]


@dataclass(frozen=True)
class Restored:
    """A run that was brought back.

    Args:
        directory: of the run.
        config: of the run.
        settings: of its trainer; torch has as many threads as they say.
        tokenizer: of the run.
        task: in training mode, on the CPU, with the weights of the checkpoint.
        step: optimiser steps taken by the checkpoint; 0 without one.
    """

    directory: RunDir
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
    return Restored(directory, config, settings, tokenizer, task, step)


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
