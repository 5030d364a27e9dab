"""What a run shows beside its numbers: the model's parts and diagram, and sample predictions.

`model.md` and `samples.md` in the run's directory have them, and every logger that has the methods
of `Shows`: W&B gets tables, a page and an artifact.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from inspect import getmodule, getsourcefile
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from hydra.utils import get_object
from lightning.pytorch.loggers import Logger

from chimera.config.compose import compose, plain
from chimera.config.groups import ZOO
from chimera.data.batch.module import DataModule
from chimera.errors import UserError, one_line
from chimera.model.diagram import mermaid
from chimera.rundir.atomic import write_atomic
from chimera.rundir.directory import RunDir
from chimera.rundir.identity import RESUMABLE, flatten, identity_settings
from chimera.task.base import Task
from chimera.train.console import ternary_by_component

PACKAGE = "chimera."
#: Files of a run's directory that say what it is.
FILES = ("config.yaml", "overrides.txt", "environment.json", "model.md", "settings.md")
#: Columns of the table of settings.
SETTINGS = ("setting", "default", "here")
#: Groups whose choices decide what a run computes.
GROUPS = (*ZOO, "task", "data", "tokenizer", "model", "optim", "schedule", "preset")
ABSENT = "–"


@runtime_checkable
class Shows(Protocol):
    """A logger with more than numbers."""

    def show_table(self, key: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Show a table."""

    def show_text(self, key: str, text: str) -> None:
        """Show text of fixed width."""

    def keep(self, files: Mapping[str, Path]) -> None:
        """Keep files, by their names, with the run."""


def show_model(
    config: Mapping[str, Any],
    task: Task,
    facts: Mapping[str, Any],
    directory: RunDir,
    loggers: Sequence[Logger],
) -> None:
    """Write model.md and hand it on, with the configuration and the sources of the chosen classes.

    Args:
        config: of the run.
        task: with its model, before training.
        facts: what run.json holds before training.
        directory: of the run.
        loggers: of the run.
    """
    columns = ("component", "parameters", "share", "ternary")
    rows = list(_parameters(task, facts["parameters"]))
    diagram = mermaid(task.model, config["choices"])
    parts = [f"# {config['name']}", _grid(columns, rows), f"```mermaid\n{diagram.rstrip()}\n```"]
    write_atomic(directory.path / "model.md", "\n\n".join(parts) + "\n")
    compared = list(from_defaults(config))
    text = f"# Settings that are not the defaults\n\n{_grid(SETTINGS, compared)}\n"
    write_atomic(directory.path / "settings.md", text)
    for logger in loggers:
        if isinstance(logger, Shows):
            logger.show_table("model/parameters", columns, rows)
            logger.show_table("model/settings", SETTINGS, compared)
            logger.show_text("model/diagram", diagram)
            files = {name: directory.path / name for name in FILES}
            logger.keep({**files, **dict(_sources(config))})


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
    before, here = flatten(identity_settings(same)), flatten(identity_settings(dict(config)))
    for key in dict.fromkeys((*before, *here)):
        old, new = before.get(key, ABSENT), here.get(key, ABSENT)
        if old != new and key not in RESUMABLE:
            yield key, one_line(old), one_line(new)


def show_samples(
    task: Task, data: DataModule, directory: RunDir, loggers: Sequence[Logger]
) -> None:
    """Write samples.md: what the trained model makes of a few texts of the validation split.

    A task has them by a method `samples(data)`, which returns rows with the same columns.

    Args:
        task: trained.
        data: of the task.
        directory: of the run.
        loggers: of the run.
    """
    samples_of: Any = getattr(task, "samples", None)
    if samples_of is None:  # a task without text of its own
        return
    model, training = task.model, task.model.training
    model.eval()
    # A compiled model would be compiled again for each new length. The import takes a second.
    compiled = getattr(model, "_compiled_call_impl", None) is not None
    eager = torch.compiler.set_stance("force_eager") if compiled else contextlib.nullcontext()
    try:
        with torch.no_grad(), eager:
            samples = samples_of(data)
    except UserError:  # a mixer that decodes no text
        return
    finally:
        model.train(training)
    if not samples:
        return
    columns = tuple(samples[0])
    rows = [tuple(sample[column] for column in columns) for sample in samples]
    text = f"# Samples of the validation split\n\n{_grid(columns, rows)}\n"
    write_atomic(directory.path / "samples.md", text)
    for logger in loggers:
        if isinstance(logger, Shows):
            logger.show_table("samples", columns, rows)


def _parameters(task: Task, counts: Mapping[str, int]) -> Iterator[tuple[str, int, str, str]]:
    ternary = ternary_by_component(task.model)
    for name, number in counts.items():
        share = f"{ternary[name]:.0%}" if name in ternary else ""
        yield name, number, f"{number / counts['total']:.1%}", share


def _sources(config: Mapping[str, Any]) -> Iterator[tuple[str, Path]]:
    """(name, file) of the modules whose classes a configuration names."""
    for target in sorted(set(_targets(config))):
        module = getmodule(get_object(target))
        file = getsourcefile(module) if module is not None else None
        if module is None or file is None or not (target.startswith(PACKAGE) or _own(Path(file))):
            continue
        yield f"code/{module.__name__.replace('.', '/')}.py", Path(file)


def _own(file: Path) -> bool:
    """Whether a file is of no installed package: its version does not tell what is in it."""
    return not {"site-packages", "dist-packages"} & set(file.parts)


def _targets(node: Any) -> Iterator[str]:
    if isinstance(node, Mapping):
        if isinstance(node.get("_target_"), str):
            yield node["_target_"]
        for value in node.values():
            yield from _targets(value)


def _grid(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table in Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)


def _cell(value: Any) -> str:
    text = f"{value:,}" if isinstance(value, int) else one_line(value)
    return text.replace("|", "\\|")
