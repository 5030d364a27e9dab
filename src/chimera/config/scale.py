"""Apply `scale=` to a composed configuration: set its values, clamp numbers to its bounds.

Also removes preset keys of parts that were replaced. Does not import torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf, open_dict

#: Keys of a scale that hold something for each preset.
BY_PRESET = ("presets", "preset_values", "preset_choices")


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


def apply_scale(cfg: DictConfig, command_keys: Set[str]) -> None:
    """Set the scale's values and clamp numbers to its bounds.

    This is the last step of the composition, so the scale wins over presets and rows.
    `extend=true` lifts the bound on `trainer.max_steps`, because its purpose is to go past it.

    Args:
        cfg: composed; changed in place.
        command_keys: keys set on the command line; the scale's values do not replace them, its
            bounds do.
    """
    # A number of epochs replaces the number of steps that a preset or the default sets.
    if cfg.trainer.max_epochs and "trainer.max_steps" not in command_keys:
        cfg.trainer.max_steps = None
    preset_values = cfg.scale.get("preset_values", {}).get(cfg.choices.preset) or {}
    for key, value in {**cfg.scale["values"], **preset_values}.items():
        node, leaf = _holder(cfg, key)
        if node is not None and key not in command_keys:
            node[leaf] = value
    preset_bounds = cfg.scale.presets.get(cfg.choices.preset) or {}
    for key, bound in {**cfg.scale.bounds, **preset_bounds}.items():
        node, leaf = _holder(cfg, key)
        if node is None or (cfg.extend and key == "trainer.max_steps"):
            continue
        value = node[leaf]
        share = leaf.startswith("limit_") and isinstance(value, float)  # of all batches
        if value is None or share or (isinstance(value, int | float) and value > bound):
            node[leaf] = bound
    drop_other_presets(cfg.scale, cfg.choices.preset)


def drop_other_presets(scale: DictConfig, preset: str) -> None:
    """Remove what a scale says of other presets: it names keys that this configuration lacks."""
    for by_preset in (scale.get(group, {}) for group in BY_PRESET):
        with open_dict(scale):
            for name in [n for n in by_preset if n != preset]:
                del by_preset[name]


def clamped(config: Mapping[str, Any], overrides: Sequence[str]) -> list[str]:
    """One line for each `key=value` of a command line that a bound of the scale reduced.

    Args:
        config: composed of these overrides, as a plain dictionary.
        overrides: of the command line.
    """
    scale, choices = config["scale"], config["choices"]
    bounds = {**scale["bounds"], **(scale["presets"].get(choices["preset"]) or {})}
    lines = []
    for key, _, value in (override.partition("=") for override in overrides):
        if key not in bounds:
            continue
        node: Any = config
        for part in key.split("."):
            node = node[part]
        if yaml.safe_load(value) != node:
            reduced = f"scale={choices['scale']} bounds {key}: {node}, not {value}"
            lines.append(f"{reduced}; scale=none has no bounds")
    return lines


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


def _holder(cfg: DictConfig, key: str) -> tuple[Any, str]:
    """Node that holds the last part of a dotted key, and that part; node None if it is absent."""
    parent, _, leaf = key.rpartition(".")
    node = OmegaConf.select(cfg, parent) if parent else cfg
    return (node if node is not None and leaf in node else None), leaf


def _keys(node: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in node.items():
        yield f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _keys(value, f"{prefix}{key}.")
