"""What becomes of a composed configuration: a preset's left-overs go, the scale has the last word.

Free of torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf, open_dict


def drop_leftovers(cfg: DictConfig, preset: str, known: Set[str], conf: Path) -> None:
    """Take out what a preset sets in a part that something else was chosen for since.

    `preset=bert_base mixer=mamba` is a BERT of Mambas; that BERT's attention has biases is then
    nobody's business. What stays and is not known is a mistake in the preset.

    Args:
        cfg: composed; changed in place.
        preset: the one chosen.
        known: the keys that the parts chosen have.
        conf: folder of the configuration.
    """
    own, keys = _preset(preset, conf)
    for key in keys:
        group, _, rest = key.partition(".")
        replaced = group in own and cfg.hydra.runtime.choices[group] != own[group]
        if not rest or not replaced or key in known:
            continue
        parent, _, leaf = key.rpartition(".")
        holder = OmegaConf.select(cfg, parent)
        if holder is not None and leaf in holder:
            with open_dict(holder):
                del holder[leaf]


def bound(cfg: DictConfig, asked: Set[str]) -> None:
    """Let the scale set its values and put its bounds: composed last, they win over every row.

    Args:
        cfg: composed; changed in place.
        asked: keys that the command line sets; no value of the scale stands in for those.
    """
    # Whoever asks for epochs does not mean some other file's number of steps.
    if cfg.trainer.max_epochs and "trainer.max_steps" not in asked:
        cfg.trainer.max_steps = None
    own = cfg.scale.get("preset_values", {}).get(cfg.choices.preset) or {}
    for key, value in {**cfg.scale["values"], **own}.items():
        node, leaf = _holder(cfg, key)
        if node is not None and key not in asked:
            node[leaf] = value
    of_preset = cfg.scale.presets.get(cfg.choices.preset) or {}
    for key, most in {**cfg.scale.bounds, **of_preset}.items():
        node, leaf = _holder(cfg, key)
        if node is None:
            continue
        value = node[leaf]
        if value is None or (isinstance(value, int | float) and value > most):
            node[leaf] = most
    # What it says of other presets is no matter of this run, and names keys that it has not.
    groups = ("presets", "preset_values", "preset_choices")
    for of_presets in (cfg.scale.get(group, {}) for group in groups):
        with open_dict(cfg.scale):
            for name in [n for n in of_presets if n != cfg.choices.preset]:
                del of_presets[name]


def held_back(config: Mapping[str, Any], words: Sequence[str]) -> list[str]:
    """A line for each `key=value` of a command line that a bound of the scale has cut.

    Args:
        config: composed of these words, as a plain dictionary.
        words: of the command line.
    """
    scale, chosen = config["scale"], config["choices"]
    bounds = {**scale["bounds"], **(scale["presets"].get(chosen["preset"]) or {})}
    lines = []
    for key, _, asked in (word.partition("=") for word in words):
        if key not in bounds:
            continue
        node: Any = config
        for part in key.split("."):
            node = node[part]
        if yaml.safe_load(asked) != node:
            said = f"scale={chosen['scale']} bounds {key}: {node}, not {asked}"
            lines.append(f"{said}; scale=none has no bounds")
    return lines


def keys_of(cfg: DictConfig, prefix: str = "") -> Iterator[str]:
    """Every key of a composed configuration, dotted."""
    for key in map(str, cfg):
        if key == "hydra" and not prefix:
            continue
        yield f"{prefix}{key}"
        node = cfg._get_node(key)
        if isinstance(node, DictConfig) and not node._is_none() and not node._is_missing():
            yield from keys_of(node, f"{prefix}{key}.")


def _preset(name: str, conf: Path) -> tuple[dict[str, str], list[str]]:
    """What a preset chooses by group, and the keys it sets, those it builds on among both."""
    node = yaml.safe_load((conf / "preset" / f"{name}.yaml").read_text(encoding="utf-8")) or {}
    own: dict[str, str] = {}
    keys: list[str] = []
    for default in node.pop("defaults", []):
        if isinstance(default, Mapping):
            own |= {key.removeprefix("override /"): choice for key, choice in default.items()}
        elif default != "_self_":
            base, more = _preset(default, conf)
            own, keys = base | own, keys + more
    return own, [*keys, *_keys(node)]


def _holder(cfg: DictConfig, key: str) -> tuple[Any, str]:
    """The node that has the last part of a dotted key, and that part; None where none has."""
    parent, _, leaf = key.rpartition(".")
    node = OmegaConf.select(cfg, parent) if parent else cfg
    return (node if node is not None and leaf in node else None), leaf


def _keys(node: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in node.items():
        yield f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _keys(value, f"{prefix}{key}.")
