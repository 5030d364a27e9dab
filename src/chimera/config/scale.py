"""Adapt a composed configuration to the chosen parts, to `scale=` and to `debug=`.

A scale sets values and clamps numbers to its bounds. A value of the command line may go past a
bound; `past_bounds` lists such values for the run's record and for reports. Does not import torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from chimera import dotted
from chimera.config.choices import Selection, keys_of, select
from chimera.config.groups import groups
from chimera.config.overrides import hint
from chimera.config.schema import arguments, check_value, shown
from chimera.errors import UserError
from chimera.rundir.identity import NOT_IDENTITY

#: Key of a run's record that holds `past_bounds`.
PAST = "past_scale"


def drop_unused_preset_keys(cfg: DictConfig, chosen: Selection, known_keys: Set[str]) -> None:
    """Remove preset keys of a part for which another option was chosen.

    Example: `preset=bert_base mixer=mamba` drops the preset's `mixer.bias`, an option of attention.
    Other unknown keys stay and are refused later, as mistakes in the preset.

    Args:
        cfg: composed; changed in place.
        chosen: options and files of all choices.
        known_keys: dotted keys of the chosen parts.
    """
    alone = select((f"preset={chosen.options['preset']}",)).options
    presets = [node for group, _, node in chosen.files if group == "preset"]
    with open_dict(cfg):
        for key in (key for node in presets for key, _ in dotted.walk(node) if "." in key):
            group = key.partition(".")[0]
            if alone.get(group) != chosen.options.get(group) and key not in known_keys:
                dotted.drop(cfg, key)


def apply_scale(cfg: DictConfig, scale: Mapping[str, Any], command_keys: Set[str]) -> None:
    """Set the scale's values, take its shares, clamp numbers to its bounds.

    The scale wins over presets and rows, and the command line over the scale.

    Args:
        cfg: composed; changed in place.
        scale: with what preset and row say at it (`choices.scale_of`).
        command_keys: keys set on the command line, which keep their values.
    """
    # A number of epochs replaces the number of steps that a preset or the default sets.
    if cfg.trainer.max_epochs and "trainer.max_steps" not in command_keys:
        cfg.trainer.max_steps = None
    kinds = ("shares", "values", "bounds")
    for key in [key for kind in kinds for key in scale[kind]]:
        _check_key(cfg, key)
    with open_dict(cfg):
        cfg.scale = dict(scale)
    for kind in kinds:
        for key, by in cfg.scale[kind].items():
            holder, leaf = dotted.holder(cfg, str(key))
            if holder is None or key in command_keys:
                continue
            if kind == "shares":
                if not (OmegaConf.is_interpolation(holder, leaf) or holder[leaf] is None):
                    holder[leaf] = max(1, round(holder[leaf] * by))
            elif kind == "values" or _is_past(str(key), holder[leaf], by):
                holder[leaf] = by


def _check_key(cfg: DictConfig, key: str) -> None:
    """Refuse a key of a scale that holds a mapping, or that no option of its group has.

    Raises:
        UserError: naming the key.
    """
    where = f"scale={cfg.choices.scale}, or a preset or row at this scale,"
    if dotted.has(cfg, key):
        if OmegaConf.is_dict(dotted.get(cfg, key)):
            raise UserError(f"{where} sets {key}, which is a mapping; set an entry, {key}.<name>")
        return
    group = key.partition(".")[0]
    if key == "needs" or key in select((f"preset={cfg.choices.preset}",)).part_keys():
        return
    known = keys_of(group) if group in groups() else frozenset(map(str, cfg))
    if key not in known:
        raise UserError(f"{where} sets {key}, which is no key{hint(key, known)}")


def apply_debug(cfg: DictConfig, chosen: Selection, settings: Mapping[str, Any]) -> None:
    """Let `debug=` win over rows and scale; set what `fast_dev_run` and `overfit_batches` mean.

    Args:
        cfg: composed; changed in place.
        chosen: its files; that of `debug=` sets keys of the trainer only.
        settings: keys of the command line, which win over `debug=`.

    Raises:
        UserError: a value of these two that is of another type or range.
    """
    for group, _, node in chosen.files:
        for key, value in dotted.flatten(node).items() if group == "debug" else ():
            if key not in settings:
                dotted.put(cfg, key, value)
    trainer = cfg.trainer
    for key in ("overfit_batches", "fast_dev_run"):
        if trainer.get(key) is not None:
            check_value(f"trainer.{key}", trainer[key], arguments(trainer._target_)[key])
    if trainer.get("overfit_batches"):
        trainer.limit_train_batches = trainer.limit_val_batches = trainer.overfit_batches
    if trainer.get("fast_dev_run"):
        batches = int(trainer.fast_dev_run)
        for part in ("train", "val", "test"):
            trainer[f"limit_{part}_batches"] = batches
        trainer.max_steps = -(-batches // trainer.accumulate_grad_batches)
        trainer.max_epochs = trainer.check_val_every_n_epoch = None
        trainer.val_check_interval = trainer.max_steps


def past_bounds(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Settings that a run's configuration has past the bounds of its scale.

    Only a command line, or a model that `init_from` names, brings a run there. Settings that do not
    affect its numbers are left out.

    Args:
        config: composed, as a plain dictionary.

    Returns:
        `value` and `bound` by dotted key.
    """
    return {
        key: {"value": dotted.get(config, key), "bound": bound}
        for key, bound in config["scale"]["bounds"].items()
        if key not in NOT_IDENTITY
        and dotted.has(config, key)
        and _is_past(key, dotted.get(config, key), bound)
    }


def past_lines(config: Mapping[str, Any]) -> list[str]:
    """One line for each setting of `past_bounds`, for the terminal."""
    scale = config["choices"]["scale"]
    return [
        f"scale={scale} bounds {key} by {at['bound']:g}, and this run has {shown(at['value'])};"
        " its record and reports say so"
        for key, at in past_bounds(config).items()
    ]


def _is_past(key: str, value: object, bound: float) -> bool:
    """Whether a value is past its bound; null and a share of all batches have no end, so they are.

    Args:
        key: of the value.
        value: of any type; texts are within every bound.
        bound: of the scale.
    """
    share = ".limit_" in key and isinstance(value, float)
    return value is None or share or (isinstance(value, int | float) and value > bound)
