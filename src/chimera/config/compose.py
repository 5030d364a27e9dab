"""Compose a run's configuration from the overrides of a command line, or fail with one line.

    +saidl/hybrids=best_combo preset=saidl_gpt scale=small mixer.window=64 init_from=runs/<name>

A *row* of a table (an experiment: paper/table=row), a *preset* and a *scale* are files of settings;
a *part* is a choice of any group of `conf/`, such as `mixer=` or `trainer=`; the *start model* is
the one of `init_from=`.

1. *Overrides* are written in one way and parsed; an unknown choice is refused (`overrides.py`).
2. *Choices* that presets, rows, the start model, the scale and parts imply are found in Hydra's
   list of files (`start_model.py`, `choices.py`).
3. *Files* of all choices are merged. The result is cached by the choices; each call gets a copy.
4. *Values* (`key=value`) are set; one that no chosen part has is refused, naming the nearest. Where
   the command line replaced a part, the preset's settings of the old one are dropped; any other
   unknown key of a file is refused. The choices and the row are written into the configuration.
5. *Scale*: its values, shares and bounds (`scale.py`); then the rate that was best for the row in
   `<table>.rates.csv` (`tables.py`), `debug=`, `precision=auto` (`precision.py`).
6. *Start model*: its nodes, tokenizer and identity are put in; then the checksum of `ckpt_path` and
   the identity of the teacher.

The command line wins: steps 5 and 6 leave alone the keys that it has set, but for those that
`trainer.fast_dev_run` and `trainer.overfit_batches` decide. Afterwards `train/check.py` checks the
configuration: types, ranges, files and the run's directory in `check_settings`, the model that the
parts make in `check_parts`. Nothing here writes a file. Torch is imported for
`init_from=hf:`, and for `precision=auto` where there is a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf, open_dict

from chimera import dotted
from chimera.config import choices, precision, start_model, tables
from chimera.config.groups import groups, is_part
from chimera.config.hydra_calls import one_line
from chimera.config.overrides import CommandLine, read, refuse_unknown, set_values
from chimera.config.scale import apply_debug, apply_scale, drop_unused_preset_keys
from chimera.config.schema import call_later, check_value
from chimera.config.trusted_config import recorded, trusted_model
from chimera.errors import UserError
from chimera.program import command_name
from chimera.rundir.directory import RunDir
from chimera.rundir.identity import NUMERICS, identity
from chimera.safe_io import expanded


@one_line()
def compose(overrides: Sequence[str]) -> DictConfig:
    """Compose the configuration of one run.

    Args:
        overrides: of the command line, as `group=choice`, `key=value` or `+<paper>/<table>=<row>`.

    Raises:
        UserError: an override that cannot be read, an unknown choice, an unknown key, an unusable
            `init_from`, `ckpt_path` or `task.teacher`.
    """
    line = read(overrides)
    start, source, chosen_options = _all_choices(line)
    cfg = choices.configuration(chosen_options)
    chosen = choices.select(chosen_options)
    known_keys = set(chosen.part_keys())
    set_values(cfg, line, known_keys)
    drop_unused_preset_keys(cfg, chosen, known_keys)
    refuse_unknown(cfg, known_keys)
    with open_dict(cfg):
        call_later(cfg)
    for key in ("ckpt_path", "task.teacher"):
        check_value(key, dotted.get(cfg, key), str | None)
    _name_choices(cfg, chosen.options)
    apply_scale(cfg, choices.scale_of(chosen), set(line.settings))
    if cfg.table and "optim.lr" not in line.settings:
        rate = tables.chosen_rate(cfg.table.name, cfg.table.row, cfg.choices.scale)
        cfg.optim.lr = rate or cfg.optim.lr
    apply_debug(cfg, chosen, line.settings)
    precision.resolve(cfg)
    cfg.init_from = start
    start_model.apply_source(cfg, source, line.settings)
    start_model.apply_checkpoint(cfg)
    if cfg.task.get("teacher"):
        cfg.task.teacher_run = _teacher_identity(cfg.task.teacher, line.texts)
    return cfg


def plain(cfg: DictConfig) -> dict[str, Any]:
    """Convert the configuration to plain containers with all interpolations resolved.

    Raises:
        UserError: an interpolation that cannot be resolved, or `???`, which asks for a value.
    """
    with one_line():
        config: Any = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    return cast(dict[str, Any], config)


def final_choices(overrides: Sequence[str]) -> list[str]:
    """All choices that overrides make, with those that presets, rows, scale and `init_from` imply.

    Raises:
        UserError: as of `compose`.
    """
    return list(_all_choices(read(overrides))[2])


def _all_choices(
    line: CommandLine,
) -> tuple[str | None, start_model.Source | None, tuple[str, ...]]:
    """Value of `init_from`, its Chimera model if it names one, all choices with implied ones."""
    start = start_model.start_model(choices.select(tuple(line.choices)), line)
    source = _source(start, line.texts) if start else None
    given = [*start_model.source_choices(source, start, line.settings), *line.choices]
    return start, source, choices.implied_choices(given, line.settings)


def _source(start: str, overrides: Sequence[str]) -> start_model.Source | None:
    """The Chimera model that `init_from` names; None if it names a Hugging Face model.

    Raises:
        UserError: no such model or row, or (unless it is a row) a run that has not finished.
    """
    if not start.startswith(tables.ROW):
        # Naming the Hugging Face model on the command line is trusting it; a file's word is not.
        trust = any(override.startswith("model.name=") for override in overrides)
        return start_model.source(start, trust=trust)
    of_row = tuple(start_model.row_overrides(start, overrides))
    try:
        config = _composed(of_row)
    except UserError as error:
        raise UserError(f"init_from={start}: {error}") from error
    run = RunDir.of(config)
    weights = run.checkpoints / "best.ckpt"
    return start_model.Source(config, weights, run.tokenizer, identity(config))


def _teacher_identity(teacher: str, overrides: Sequence[str]) -> str:
    """Identity (eight hexadecimal digits) of the teacher of a run.

    Args:
        teacher: a run's directory or `row:<paper>/<table>/<row>`.
        overrides: of the student.

    Raises:
        UserError: no such row, or a directory without a run.
    """
    if teacher.startswith(tables.ROW):
        return identity(_composed(tuple(start_model.teacher_overrides(teacher, overrides))))
    directory = RunDir(expanded(teacher))
    trusted_model(
        recorded(directory),
        directory.path,
        f"task.teacher={teacher}",
        advice="name a teacher of Chimera's own parts",
    )
    return identity(directory.config())


@cache
def _composed(overrides: tuple[str, ...]) -> dict[str, Any]:
    return plain(compose(overrides))


def _name_choices(cfg: DictConfig, options: Mapping[str, str]) -> None:
    """Write the choices, the table's row and the code's `numerics` into the configuration."""
    with open_dict(cfg):
        cfg.choices = {group: option for group, option in options.items() if is_part(group)}
        if several := [o for group, o in options.items() if group.startswith("logger@")]:
            cfg.choices.logger = ",".join(several)
        cfg.table = _table(options, cfg.table)
        cfg.numerics = NUMERICS


def _table(options: Mapping[str, str], node: Any) -> dict[str, Any] | None:
    """Name of the run's table and row with the table's settings; None without an experiment.

    Raises:
        UserError: a table is chosen without a row, which only a sweep may do.
    """
    chosen = [(g, option) for g, option in options.items() if choices.is_experiment(g)]
    if rows := [each for each in chosen if "/" in each[0]]:
        return {"name": rows[-1][0], "row": rows[-1][1], **(node or {})}
    if not chosen:
        return None
    paper, table = chosen[0]
    if f"{paper}/{table}" not in groups():
        tables.load(f"{paper}/{table}")  # says that it has no rows
    raise UserError(
        f"+{paper}={table} is a table; run all its rows with {command_name('train')} -m"
        f" +{paper}={table}, or one with +{paper}/{table}=<row>:"
        f" {', '.join(groups()[f'{paper}/{table}'])}"
    )
