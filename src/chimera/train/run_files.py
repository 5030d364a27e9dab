"""Files beside a run's numbers: tokenizer, test set, model.md, settings.md, samples.md, curves.png.

Loggers that have a method `show_table` get the tables as well: W&B shows them.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback

from chimera.config.compose import compose, plain
from chimera.config.groups import ZOO
from chimera.data.batch.module import DataModule
from chimera.dotted import flatten
from chimera.errors import UserError, one_line
from chimera.model.diagram import mermaid
from chimera.model.restore import save_body
from chimera.report import style
from chimera.report.diagram import drawn
from chimera.rundir.directory import RunDir
from chimera.rundir.identity import RESUMABLE, identity_settings
from chimera.rundir.steps import read, smooth, validated
from chimera.safe_io import replacing, write_atomic
from chimera.task.base import Task
from chimera.train.model_summary import parameters_by_component, ternary_by_component
from chimera.train.pipeline import pipeline

#: Columns of the table of parameters, and of that of settings.
PARAMETERS = ("component", "parameters", "share", "ternary")
SETTINGS = ("setting", "default", "here")
#: Groups whose choices decide what a run computes.
GROUPS = (*ZOO, "task", "data", "tokenizer", "model", "optim", "schedule", "preset")
ABSENT = "–"


class RunFiles(Callback):
    """Writes what an evaluation or an export of the run needs, and what a reader wants to see.

    Before training: the tokenizer, the test set, the body of another library's model, model.md and
    settings.md. After the test: samples.md, if the task has samples and one process trains.
    """

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        if stage != "fit" or not trainer.is_global_zero:
            return
        assert isinstance(pl_module, Task)
        data: DataModule = trainer.datamodule  # type: ignore[attr-defined]
        directory = RunDir(Path(trainer.default_root_dir))
        data.prepared.tokenizer.save(directory.tokenizer)
        save_body(pl_module.model, directory.path)
        data.save_test(directory.test_data)
        show_model(directory.config(), pl_module, directory.path, trainer.loggers)

    def on_test_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.world_size > 1:  # the model may be in shards
            return
        show_diagram(pl_module, Path(trainer.default_root_dir), trainer)
        samples = samples_of(pl_module, trainer.datamodule)  # type: ignore[attr-defined]
        if not samples:
            return
        columns = tuple(samples[0])
        rows = [tuple(sample[column] for column in columns) for sample in samples]
        text = f"# Samples of the validation split\n\n{_grid(columns, rows)}\n"
        write_atomic(Path(trainer.default_root_dir) / "samples.md", text)
        show_table(trainer.loggers, "samples", columns, rows)


def show_diagram(task: Any, folder: Path, trainer: pl.Trainer) -> None:
    """Write model.png, the diagram of model.md, for loggers that show pictures.

    Args:
        task: with its model.
        folder: of the run.
        trainer: with the loggers.
    """
    shows = [logger.show_picture for logger in trainer.loggers if hasattr(logger, "show_picture")]
    if shows:
        file = folder / "model.png"
        chart = mermaid(task.model, RunDir(folder).config()["choices"])
        style.save(drawn(chart), file, ("png",))
        for show in shows:
            show("model", file, trainer.global_step)


def show_model(config: Mapping[str, Any], task: Task, folder: Path, loggers: Sequence[Any]) -> None:
    """Write model.md and settings.md, and show loggers the same.

    Args:
        config: of the run.
        task: with its model, before training.
        folder: of the run.
        loggers: of the run.
    """
    rows = list(_parameters(task))
    diagrams = mermaid(task.model, config["choices"]), pipeline(config)
    drawn = [f"```mermaid\n{diagram.rstrip()}\n```" for diagram in diagrams]
    parts = [f"# {config['name']}", _grid(PARAMETERS, rows), *drawn]
    write_atomic(folder / "model.md", "\n\n".join(parts) + "\n")
    compared = list(from_defaults(config))
    text = f"# Settings that are not the defaults\n\n{_grid(SETTINGS, compared)}\n"
    write_atomic(folder / "settings.md", text)
    show_table(loggers, "model/parameters", PARAMETERS, rows)
    show_table(loggers, "model/settings", SETTINGS, compared)


def show_table(
    loggers: Sequence[Any], key: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]
) -> None:
    """Hand a table to the loggers that have a method `show_table(key, columns, rows)`."""
    for logger in loggers:
        if hasattr(logger, "show_table"):
            logger.show_table(key, columns, rows)


def from_defaults(config: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """(key, default, here) of the settings in which a run differs from the default one.

    Of a group with another choice only the choice and what is not that choice's default is listed.
    """
    choices = {group: name for group, name in config["choices"].items() if group in GROUPS}
    default = plain(compose([]))
    try:
        same = plain(compose([f"{group}={name}" for group, name in choices.items()]))
    except UserError:  # a choice that needs more than its name, such as tokenizer=own
        same = default
    for group, name in choices.items():
        if (usual := default["choices"].get(group)) != name:
            yield group, str(usual), name
    before = flatten(identity_settings(same))
    here = flatten(identity_settings(dict(config)))
    for key in dict.fromkeys((*before, *here)):
        old = before.get(key, ABSENT)
        new = here.get(key, ABSENT)
        if old != new and key not in RESUMABLE:
            yield key, one_line(old), one_line(new)


def samples_of(task: Any, data: DataModule) -> list[dict[str, str]]:
    """What the trained model makes of a few texts of the validation split; empty without samples.

    A task has them by a method `samples(data)`, which returns rows with the same columns.
    """
    if not hasattr(task, "samples"):  # a task without text of its own
        return []
    model = task.model
    training = model.training
    model.eval()
    # A compiled model would be compiled again for each new length. The import takes a second.
    compiled = getattr(task, "compiled", False)
    eager = torch.compiler.set_stance("force_eager") if compiled else contextlib.nullcontext()
    try:
        with torch.no_grad(), eager:
            return task.samples(data)
    except UserError:  # a mixer that decodes no text
        return []
    finally:
        model.train(training)


def _parameters(task: Task) -> Iterator[tuple[str, int, str, str]]:
    counts = parameters_by_component(task.model)
    ternary = ternary_by_component(task.model)
    total = sum(counts.values())
    for name, number in {"total": total, **counts}.items():
        share = f"{ternary[name]:.0%}" if name in ternary else ""
        yield name, number, f"{number / total:.1%}", share


def _grid(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table in Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)


def _cell(value: Any) -> str:
    text = f"{value:,}" if isinstance(value, int) else one_line(value)
    return text.replace("|", "\\|")


log = logging.getLogger("chimera")


def curves(directory: RunDir, record: Mapping[str, Any], unit: str) -> None:
    """Draw loss and learning rate against optimiser steps: curves.png.

    Args:
        directory: of the run.
        record: contents of run.json, which has the validations.
        unit: of the loss, such as `nats per token`.
    """
    try:
        figure = style.empty(8.5, 5.2)
    except ImportError as error:  # on a lent machine, say: `make gpu` carries no matplotlib
        log.warning("%s is not drawn: %s", directory.curves.name, error)
        return

    log_of_steps = read(directory.steps).reindex(columns=["global_step", "loss", "learning_rate"])
    x, loss, rates = log_of_steps.to_numpy().T.tolist()
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    top.plot(x, loss, color="0.8", linewidth=0.7, label="training, each step")
    label = "training, mean around each step"
    top.plot(x, smooth(loss), color=style.COLOURS[0], linewidth=1.6, label=label)
    if validations := validated(record):
        dots = {"markersize": 5 if len(validations) <= 25 else 3, "linewidth": 1.0}
        step, last = validations[-1]
        label = f"validation ({last:.3f} at step {step:,})"
        colour = style.COLOURS[4]
        top.plot(*zip(*validations, strict=True), "--s", color=colour, label=label, **dots)
    top.set_ylabel(f"loss ({unit})")
    figure.suptitle(record["name"], fontsize=11)
    style.legend(figure, top)
    bottom.plot(x, rates, color=style.COLOURS[6])
    bottom.set_ylabel("learning rate")
    bottom.ticklabel_format(axis="y", style="sci", scilimits=(0, 0))
    bottom.set_xlabel("optimiser steps")
    for axis in (top, bottom):
        style.tidy(axis)
    with replacing(directory.curves) as file:
        figure.savefig(file, dpi=130, format="png")
