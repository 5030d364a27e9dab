"""From the overrides of a command line to one resolved configuration, or one clear line why not.

    choices (with those that they bring) → Hydra composes them, once → values → scale → source

Hydra's own errors, and what it would accept silently (a misspelt key after `+`, a list where one
name belongs), are refused here. Does not import torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import InterpolationResolutionError, OmegaConfBaseException

from chimera.config import init_from, tables
from chimera.config.choices import (
    UNSET,
    Selection,
    configuration,
    is_experiment,
    is_top_level,
    members,
    scaled,
    select,
    start_of,
)
from chimera.config.groups import groups
from chimera.config.overrides import check_choices, check_key, hint, is_choice
from chimera.config.scale import bound, drop_leftovers, keys_of
from chimera.config.search_path import one_line
from chimera.errors import UserError
from chimera.paths import CONF
from chimera.rundir.directory import RunDir
from chimera.rundir.identity import NUMERICS, identity

#: Overrides that a row which is trained first has from the run that starts from it.
SHARED = ("scale=", "logger", "launcher", "trainer.progress=", "data.cache_dir=")
#: Overrides that a teacher does not have from its student: where a run goes, and the student alone.
NOT_THE_TEACHERS = ("run_dir", "overwrite", "name", "table", "task.teacher", "task.distil")


def compose(overrides: list[str], *, conf: Path = CONF) -> DictConfig:
    """The configuration of one run, bounded by its scale and checked for its keys.

    Raises:
        UserError: an override that cannot be read, an unknown choice, an unknown key.
    """
    parsed = check_choices(overrides)
    settings: dict[str, Any] = {o.key_or_group: o.value() for o in parsed}
    choices = [line for line, o in zip(overrides, parsed, strict=True) if is_choice(o)]
    start = settings.get("init_from", UNSET)
    if start is UNSET:
        start = start_of(select(tuple(choices), conf), choices)
    source = source_of(start, overrides) if start else None
    brought = init_from.choices(source, start, settings)
    cfg, final = _with_choices([*brought, *choices], settings.get("mixer.cycle", UNSET), conf)
    known = frozenset(final.keys())
    for override in parsed:
        if not is_choice(override):
            _set(cfg, override, known)
    preset = final.options["preset"]
    drop_leftovers(cfg, preset, known, conf)
    _refuse_unknown(cfg, known)
    with open_dict(cfg):
        del cfg["hydra"]
        named = {g: o for g, o in final.options.items() if is_top_level(g) and not is_experiment(g)}
        cfg.choices = named
        cfg.table = _table(final.options, cfg.table)
        cfg.numerics = NUMERICS
    bound(cfg, set(settings))
    cfg.init_from = start
    init_from.apply_source(cfg, source, settings)
    if cfg.task.get("teacher"):
        cfg.task.teacher_run = teacher_identity(cfg.task.teacher, overrides)
    return cfg


def plain(cfg: DictConfig) -> dict[str, Any]:
    """The configuration as plain containers, interpolations resolved."""
    try:
        found = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    except InterpolationResolutionError as error:
        raise UserError(" ".join(str(error).split())) from error
    assert isinstance(found, dict)
    return {str(key): value for key, value in found.items()}


def source_of(start: str, overrides: Iterable[str] = ()) -> init_from.Source | None:
    """The Chimera model that `init_from` names; None where it is a Hugging Face model.

    Args:
        start: value of `init_from`.
        overrides: of the run that starts from it, some of which a row shares.

    Raises:
        UserError: there is none, or it is not trained yet.
    """
    if not start.startswith(tables.ROW):
        return init_from.source(start)
    config = _row(tuple(row_overrides(start, overrides)))
    run = RunDir.of(config)
    return init_from.Source(config, run.checkpoints / "best.ckpt", run.tokenizer, identity(config))


def row_overrides(row: str, overrides: Iterable[str]) -> list[str]:
    """The command line that trains the row which a run with these overrides starts from.

    Raises:
        UserError: no such row.
    """
    chosen = tables.row_override(row, "init_from")
    return [chosen, *(o for o in overrides if o.startswith(SHARED))]


def teacher_overrides(teacher: str, overrides: Iterable[str]) -> list[str]:
    """The command line that trains the teacher of a run with these overrides.

    Raises:
        UserError: no such row.
    """
    chosen = tables.row_override(teacher, "task.teacher")
    papers = tables.papers()
    shared = [
        override
        for override in overrides
        if override.lstrip("+").partition("=")[0].partition("/")[0] not in papers
        and not override.lstrip("+").startswith(NOT_THE_TEACHERS)
    ]
    return [chosen, *shared]


def teacher_identity(teacher: str, overrides: Iterable[str]) -> str:
    """The identity of the teacher of a run with these overrides.

    Raises:
        UserError: no such row, or a directory that is no run's.
    """
    if not teacher.startswith(tables.ROW):
        return identity(RunDir(Path(teacher)).config())
    return identity(_row(tuple(teacher_overrides(teacher, overrides))))


@cache
def _row(overrides: tuple[str, ...]) -> dict[str, Any]:
    return plain(compose(list(overrides)))


def _with_choices(choices: list[str], cycle: Any, conf: Path) -> tuple[DictConfig, Selection]:
    """The configuration of choices and of all that they bring, and its files."""
    chosen = select(tuple(choices), conf)
    final = (*scaled(chosen, choices), *choices)
    final = (*members(select(final, conf), cycle), *final)
    return configuration(final, conf), select(final, conf)


def _set(cfg: DictConfig, override: Override, known: frozenset[str]) -> None:
    key = override.key_or_group
    if key.partition(".")[0] == "hydra":  # Hydra's own, which only a sweep has
        return
    check_key(override, known)
    if override.is_sweep_override():
        raise UserError(f"{override.input_line} names several values; a sweep is train.py -m …")
    try:
        with one_line():
            OmegaConf.update(cfg, key, override.value(), merge=True, force_add=True)
    except OmegaConfBaseException as error:
        raise UserError(" ".join(str(error).split())) from error


def _refuse_unknown(cfg: DictConfig, known: frozenset[str]) -> None:
    for key in sorted(set(keys_of(cfg)) - known):
        if not key.startswith(("table.", "mixer.members", "callbacks.")):
            raise UserError(
                f"an experiment file sets {key}, which no chosen part has{hint(key, known)}"
            )


def _table(options: dict[str, str], node: Any) -> dict[str, Any] | None:
    """The table that the run is a row of, and the row; a table alone is a sweep's, and refused."""
    mine = {group: option for group, option in options.items() if is_experiment(group)}
    rows = [(group, option) for group, option in mine.items() if "/" in group]
    if rows:
        return {"name": rows[-1][0], "row": rows[-1][1], **(node or {})}
    if not mine:
        return None
    paper, table = next(iter(mine.items()))
    raise UserError(
        f"+{paper}={table} is a table: train.py -m +{paper}={table} runs all its rows,"
        f" +{paper}/{table}=<row> one of {', '.join(groups()[f'{paper}/{table}'])}"
    )
