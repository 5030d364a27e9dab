"""Apply `scale=` to a composed configuration: set its values, clamp numbers to its bounds.

A value of the command line may go past a bound; `past_bounds` lists such values for the run's
record and for reports. Also removes preset keys of parts that were replaced. Does not import torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf, open_dict

from chimera.rundir.identity import NOT_IDENTITY

#: Key of a run's record that holds `past_bounds`.
PAST = "past_scale"


def drop_unused_preset_keys(
    cfg: DictConfig, preset: str, chosen: Mapping[str, str], known_keys: Set[str], conf: Path
) -> None:
    """Remove preset keys of a part for which another option was chosen.

    Example: `preset=bert_base mixer=mamba` drops the preset's `mixer.bias`, an option of attention.
    Other unknown keys stay and are refused later, as mistakes in the preset.

    Args:
        cfg: composed; changed in place.
        preset: name of the chosen preset.
        chosen: option of each group.
        known_keys: dotted keys of the chosen parts.
        conf: folder of the configuration.
    """
    preset_options, keys = _preset(preset, conf)
    for key in keys:
        group, _, rest = key.partition(".")
        replaced = group in preset_options and chosen[group] != preset_options[group]
        if not rest or not replaced or key in known_keys:
            continue
        parent, _, leaf = key.rpartition(".")
        holder = OmegaConf.select(cfg, parent)
        if holder is not None and leaf in holder:
            with open_dict(holder):
                del holder[leaf]


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
    with open_dict(cfg):
        cfg.scale = dict(scale)
    scale = cfg.scale
    for key, factor in scale.shares.items():
        node, leaf = _holder(cfg, key)
        if node is None or key in command_keys or OmegaConf.is_interpolation(node, leaf):
            continue
        if node[leaf] is not None:
            node[leaf] = max(1, round(node[leaf] * factor))
    for key, value in scale["values"].items():
        node, leaf = _holder(cfg, key)
        if node is not None and key not in command_keys:
            node[leaf] = value
    for key, bound in scale.bounds.items():
        node, leaf = _holder(cfg, key)
        if node is not None and key not in command_keys and _is_past(leaf, node[leaf], bound):
            node[leaf] = bound


def past_bounds(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Settings that a run's configuration has past the bounds of its scale.

    Only a command line, or a model that `init_from` names, brings a run there. Settings that do not
    affect its numbers are left out.

    Args:
        config: composed, as a plain dictionary.

    Returns:
        `value` and `bound` by dotted key.
    """
    scale = config["scale"]
    own = scale.get("presets", {}).get(config["choices"]["preset"])  # of older runs
    bounds = {**scale["bounds"], **(own or {})}
    past = {}
    for key, bound in bounds.items():
        node, leaf = _holder(config, key)
        if node is not None and key not in NOT_IDENTITY and _is_past(leaf, node[leaf], bound):
            past[key] = {"value": node[leaf], "bound": bound}
    return past


def past_lines(config: Mapping[str, Any]) -> list[str]:
    """One line for each setting of `past_bounds`, for the terminal."""
    scale = config["choices"]["scale"]
    return [
        f"scale={scale} bounds {key} by {at['bound']:g}, and this run has {shown(at['value'])};"
        " its record and reports say so"
        for key, at in past_bounds(config).items()
    ]


def shown(value: object) -> str:
    """A value as it is written on a command line."""
    return "null" if value is None else str(value)


def keys_of(cfg: DictConfig, prefix: str = "") -> Iterator[str]:
    """All dotted keys of a composed configuration."""
    for key in map(str, cfg):
        yield f"{prefix}{key}"
        node = cfg._get_node(key)
        if isinstance(node, DictConfig) and not node._is_none() and not node._is_missing():
            yield from keys_of(node, f"{prefix}{key}.")


@cache
def _preset(name: str, conf: Path) -> tuple[dict[str, str], list[str]]:
    """Options by group and dotted keys of a preset, including those of its base presets."""
    node = yaml.safe_load((conf / "preset" / f"{name}.yaml").read_text(encoding="utf-8")) or {}
    options: dict[str, str] = {}
    keys: list[str] = []
    for default in node.pop("defaults", []):
        if isinstance(default, Mapping):
            options |= {key.removeprefix("override /"): choice for key, choice in default.items()}
        elif default != "_self_":
            base_options, base_keys = _preset(default, conf)
            options, keys = base_options | options, keys + base_keys
    return options, [*keys, *_keys(node)]


def _holder(config: Any, key: str) -> tuple[Any, str]:
    """Node that holds the last part of a dotted key, and that part; node None if it is absent."""
    *parents, leaf = key.split(".")
    node = config
    for part in parents:
        node = node[part] if isinstance(node, Mapping | DictConfig) and part in node else None
    return (node if isinstance(node, Mapping | DictConfig) and leaf in node else None), leaf


def _is_past(leaf: str, value: object, bound: float) -> bool:
    """Whether a value is past its bound; null and a share of all batches have no end, so they are.

    Args:
        leaf: last part of the value's key.
        value: of any type; texts are within every bound.
        bound: of the scale.
    """
    share = leaf.startswith("limit_") and isinstance(value, float)
    return value is None or share or (isinstance(value, int | float) and value > bound)


def _keys(node: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in node.items():
        yield f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _keys(value, f"{prefix}{key}.")
