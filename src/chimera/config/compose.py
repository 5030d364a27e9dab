"""Compose a run's configuration from the overrides of a command line, or fail with one line.

    choices (and those that they imply) → Hydra's composition, once → values → scale → `init_from`

Inputs that Hydra accepts silently, such as a misspelt key after `+` or a list in place of a name,
are refused; Hydra's own errors become one line. Does not import torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from functools import cache
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import InterpolationResolutionError, OmegaConfBaseException

from chimera import dotted
from chimera.config import init_from, precision, rates, scratch, tables
from chimera.config.choices import (
    UNSET,
    companion_choices,
    configuration,
    is_experiment,
    is_top_level,
    member_choices,
    scale_choices,
    scale_of,
    select,
)
from chimera.config.declared import recorded, trusted_model
from chimera.config.groups import groups
from chimera.config.lengths import apply_debug
from chimera.config.overrides import (
    OPEN,
    canonical,
    check_choices,
    check_entry,
    check_key,
    hint,
    is_choice,
    one_each,
)
from chimera.config.rows_before import check_row_settings, row_overrides, teacher_overrides
from chimera.config.scale import apply_scale, drop_unused_preset_keys
from chimera.config.search_path import one_line
from chimera.errors import UserError
from chimera.paths import CONF
from chimera.program import spelt
from chimera.rundir.directory import RunDir
from chimera.rundir.identity import NUMERICS, identity


def compose(overrides: list[str], *, conf: Path = CONF) -> DictConfig:
    """Compose the configuration of one run: choices, values, scale, `init_from`.

    Args:
        overrides: of the command line, as `group=choice`, `key=value` or `+<paper>/<table>=<row>`.
        conf: folder of the configuration.

    Raises:
        UserError: an override that cannot be read, an unknown choice, an unknown key, an unusable
            `init_from`.
    """
    overrides = one_each(canonical(overrides))
    parsed = check_choices(overrides)
    settings: dict[str, Any] = {o.key_or_group: o.value() for o in parsed}
    start_model, source, choices = _choices(overrides, parsed, settings, conf)
    cfg, final = configuration(choices, conf), select(choices, conf)
    known_keys = set(final.keys())
    for override in parsed:
        if not is_choice(override):
            key = override.key_or_group
            if key not in known_keys and _is_argument(cfg, key, settings):
                _check_adds(override)
                known_keys.add(key)
            else:
                check_key(override, known_keys)
            _set(cfg, override)
    drop_unused_preset_keys(cfg, final.options, known_keys)
    _refuse_unknown(cfg, known_keys)
    with open_dict(cfg):
        options = final.options.items()
        cfg.choices = {g: o for g, o in options if is_top_level(g) and not is_experiment(g)}
        if several := [o for g, o in options if g.startswith("logger@")]:
            cfg.choices.logger = ",".join(several)
        cfg.table = _table(final.options, cfg.table)
        cfg.numerics = NUMERICS
    apply_scale(cfg, scale_of(final), set(settings))
    rates.apply(cfg, set(settings))
    apply_debug(cfg, final, settings)
    precision.resolve(cfg)
    cfg.init_from = start_model
    init_from.apply_source(cfg, source, settings)
    init_from.apply_checkpoint(cfg)
    if cfg.task.get("teacher"):
        cfg.task.teacher_run = teacher_identity(cfg.task.teacher, overrides)
    return cfg


def plain(cfg: DictConfig) -> dict[str, Any]:
    """Convert the configuration to plain containers with all interpolations resolved.

    Raises:
        UserError: an interpolation that cannot be resolved.
    """
    try:
        config = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    except InterpolationResolutionError as error:
        raise UserError(" ".join(str(error).split())) from error
    assert isinstance(config, dict)
    return {str(key): value for key, value in config.items()}


def source_of(start_model: str, overrides: Iterable[str] = ()) -> init_from.Source | None:
    """Find the Chimera model that `init_from` names; None if it names a Hugging Face model.

    Args:
        start_model: value of `init_from`.
        overrides: of the run; a row named by `init_from` shares some of them, and has those of
            `init_row`.

    Raises:
        UserError: no such model, or a run that has not finished.
    """
    if not start_model.startswith(tables.ROW):
        trust = any(override.startswith("model.name=") for override in overrides)
        return init_from.source(start_model, trust=trust)
    of_row = tuple(row_overrides(start_model, overrides))
    try:
        config = _row(of_row)
    except UserError as error:
        raise UserError(f"init_from={start_model}: {error}") from error
    run = RunDir.of(config)
    return init_from.Source(config, run.checkpoints / "best.ckpt", run.tokenizer, identity(config))


def teacher_identity(teacher: str, overrides: Iterable[str]) -> str:
    """Identity (eight hexadecimal digits) of the teacher of a run.

    Args:
        teacher: a run's directory or `row:<paper>/<table>/<row>`.
        overrides: of the student.

    Raises:
        UserError: no such row, or a directory without a run.
    """
    if not teacher.startswith(tables.ROW):
        directory = RunDir(Path(teacher))
        trusted_model(
            recorded(directory),
            directory.path,
            f"task.teacher={teacher}",
            advice="name a teacher of Chimera's own parts",
        )
        return identity(directory.config())
    return identity(_row(tuple(teacher_overrides(teacher, overrides))))


@cache
def _row(overrides: tuple[str, ...]) -> dict[str, Any]:
    return plain(compose(list(overrides)))


def final_choices(overrides: list[str], *, conf: Path = CONF) -> list[str]:
    """All choices of groups that overrides lead to, those of scale and `init_from` included.

    Raises:
        UserError: as of `compose`.
    """
    parsed = check_choices(overrides)
    settings = {o.key_or_group: o.value() for o in parsed}
    return list(_choices(overrides, parsed, settings, conf)[2])


def _choices(
    overrides: list[str], parsed: list[Override], settings: dict[str, Any], conf: Path
) -> tuple[str | None, init_from.Source | None, tuple[str, ...]]:
    """Value of `init_from`, its Chimera model if it names one, all choices with implied ones."""
    choices = [text for text, o in zip(overrides, parsed, strict=True) if is_choice(o)]
    start_model = scratch.start_model(select(tuple(choices), conf), choices, settings)
    check_row_settings(start_model, settings)
    source = source_of(start_model, overrides) if start_model else None
    choices = [*init_from.source_choices(source, start_model, settings), *choices]
    chosen = (*scale_choices(select(tuple(choices), conf), choices), *choices)
    chosen = (*companion_choices(select(chosen, conf), choices), *chosen)
    members = member_choices(select(chosen, conf), settings.get("mixer.cycle", UNSET))
    return start_model, source, (*members, *chosen)


def _is_argument(cfg: DictConfig, key: str, settings: dict[str, Any]) -> bool:
    """Whether a key is an argument of its node's class that no YAML file names.

    The arguments of a class of another package are checked later, when it is imported.
    """
    parent, _, name = key.rpartition(".")
    node = OmegaConf.select(cfg, parent) if parent else None
    if not isinstance(node, DictConfig) or name in node:
        return False
    target = str(settings.get(f"{parent}._target_", node.get("_target_") or ""))
    if not target.startswith("chimera."):
        return bool(target)
    from chimera.config.schema import arguments  # imports pydantic

    return name in arguments(target)


def _check_adds(override: Override) -> None:
    if not override.is_add() and not override.is_force_add():
        raise UserError(
            f"{override.input_line}: no file sets {override.key_or_group}; if its class has this"
            f" argument, write +{override.input_line}"
        )


def _set(cfg: DictConfig, override: Override) -> None:
    key = override.key_or_group
    if override.is_delete():
        parent, _, leaf = key.rpartition(".")
        node = OmegaConf.select(cfg, parent)
        with open_dict(node):
            node.pop(leaf, None)
        return
    if override.is_sweep_override():
        raise UserError(
            f"{override.input_line} gives several values; start a sweep with {spelt('train')} -m …"
        )
    check_entry(override, OmegaConf.select(cfg, key, throw_on_resolution_failure=False))
    try:
        with one_line():
            OmegaConf.update(cfg, key, override.value(), merge=True, force_add=True)
    except OmegaConfBaseException as error:
        raise UserError(" ".join(str(error).split())) from error


def _refuse_unknown(cfg: DictConfig, known_keys: Set[str]) -> None:
    keys = {key for key, _ in dotted.walk(OmegaConf.to_container(cfg))}
    for key in sorted(keys - known_keys):
        if not key.startswith(("table.", "init_row.", "mixer.members", "callbacks.", *OPEN)):
            raise UserError(
                f"an experiment or preset sets {key}, which no chosen part has"
                f"{hint(key, known_keys)}"
            )


def _table(options: dict[str, str], node: Any) -> dict[str, Any] | None:
    """Name of the run's table and row with the table's settings; None without an experiment.

    Raises:
        UserError: a table is chosen without a row, which only a sweep may do.
    """
    experiments = {group: option for group, option in options.items() if is_experiment(group)}
    rows = [(group, option) for group, option in experiments.items() if "/" in group]
    if rows:
        return {"name": rows[-1][0], "row": rows[-1][1], **(node or {})}
    if not experiments:
        return None
    paper, table = next(iter(experiments.items()))
    raise UserError(
        f"+{paper}={table} is a table; run all its rows with {spelt('train')} -m +{paper}={table},"
        f" or one with +{paper}/{table}=<row>: {', '.join(groups()[f'{paper}/{table}'])}"
    )
