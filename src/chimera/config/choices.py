"""What a command line chooses, found without composing: Hydra's list of files and their keys.

A choice may bring others: a preset or a row of a table choose parts, a scale puts small data in
their place, a model to start from brings its parts, and a list of mixers its members. All are
known from the list of files, so that each distinct set of choices is composed once.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig

from chimera.config import static
from chimera.config.groups import groups, is_part
from chimera.config.roots import find
from chimera.config.search_path import composed, defaults_list, hydra_on
from chimera.errors import unknown

#: Stands for «the command line does not say».
UNSET: Any = object()


@dataclass(frozen=True)
class Selection:
    """The files of a set of choices.

    Args:
        options: group to option, those inside composites (`mixer@mixer.members.x`) and those of
            experiments among them.
        files: (group, package, contents) of each file in the order of composition.
    """

    options: dict[str, str]
    files: tuple[tuple[str, str, dict[str, Any]], ...]

    def value(self, key: str, default: Any = None) -> Any:
        """What the files say of a dotted key; the last one counts."""
        for _, package, node in reversed(self.files):
            inside = key.removeprefix(f"{package}.") if package else key
            if (inside != key or not package) and (got := _select(node, inside)) is not UNSET:
                return got
        return default

    def keys(self) -> Iterator[str]:
        """Every key that the parts have.

        Experiments and presets add no key of their own: what they set has to be there without
        them, so that their typing errors are seen.
        """
        for group, package, node in self.files:
            if group == "preset" or is_experiment(group):
                continue
            parts = package.split(".") if package else []
            yield from (".".join(parts[: n + 1]) for n in range(len(parts)))
            yield from _keys(node, f"{package}." if package else "")


def is_experiment(group: str) -> bool:
    """Whether a group is of `experiments/`."""
    return not is_part(group.partition("@")[0])


def is_top_level(group: str) -> bool:
    """Whether a group of the configuration itself, not of a composite or an experiment."""
    return "/" not in group and "@" not in group


@cache
def select(overrides: tuple[str, ...], conf: Path) -> Selection:
    """The files that group overrides lead to."""
    with hydra_on(conf):
        found = defaults_list(overrides)
    options = {g: o for g, o in found.overrides.known_choices.items() if isinstance(o, str)}
    files = []
    for default in found.defaults:
        path = default.config_path
        if path is None or path.startswith(("hydra/", "_dummy")):
            continue
        files.append((path.rpartition("/")[0], default.package or "", _read(conf, path)))
    return Selection({g: o for g, o in options.items() if not g.startswith("hydra/")}, tuple(files))


@cache
def compose_choices(overrides: tuple[str, ...], conf: Path) -> DictConfig:
    """The configuration of group overrides; to be copied before it is changed."""
    with hydra_on(conf):
        return composed(overrides)


def configuration(overrides: tuple[str, ...], conf: Path) -> DictConfig:
    """A configuration of group overrides that the caller may change."""
    return copy.deepcopy(compose_choices(overrides, conf))


def start_of(chosen: Selection, overrides: Sequence[str]) -> str | None:
    """The `init_from` of a row or a preset at this scale; None where a model is chosen."""
    names = {override.lstrip("+").partition("=")[0] for override in overrides}
    if "model" in names or not ("preset" in names or any("/" in name for name in names)):
        return None
    values = _scale(chosen).get("preset_values") or {}
    own = values.get(chosen.options["preset"]) or {}
    start = own.get("init_from", chosen.value("init_from"))
    return None if start is None else str(start)


def scaled(chosen: Selection, overrides: Sequence[str]) -> list[str]:
    """Choices that the scale adds to those of the command line."""
    names = {override.partition("=")[0] for override in overrides}
    scale = _scale(chosen)
    options = dict(scale.get("choices") or {})
    if options and not static.attribute(str(chosen.value("task._target_")), "plain_text", True):
        # Text stands in for text; labelled examples have no stand-in.
        options = {g: o for g, o in options.items() if g not in ("data", "tokenizer")}
        options |= (scale.get("preset_choices") or {}).get(chosen.options["preset"]) or {}
    return [f"{group}={option}" for group, option in options.items() if group not in names]


def members(chosen: Selection, cycle: Any) -> list[str]:
    """Choices that bring in the mixers which a composite's `cycle` names and has no node of.

    Args:
        chosen: the files.
        cycle: as the command line has it, or UNSET.
    """
    names = chosen.value("mixer.cycle") if cycle is UNSET else cycle
    if not isinstance(names, list):
        return []
    known = groups()["mixer"]
    for name in names:
        if name not in known:
            raise unknown("mixer.cycle", str(name), known)
    places = {name: f"mixer@mixer.members.{name}" for name in dict.fromkeys(names)}
    return [f"+{place}={name}" for name, place in places.items() if place not in chosen.options]


def _scale(chosen: Selection) -> dict[str, Any]:
    return next(node for group, _, node in chosen.files if group == "scale")


@cache
def _read(conf: Path, path: str) -> dict[str, Any]:
    inside = conf / f"{path}.yaml"
    place = inside if inside.is_file() else find(path)
    node = yaml.safe_load(place.read_text(encoding="utf-8")) or {}
    return {key: value for key, value in node.items() if key != "defaults"}


def _select(node: Any, key: str) -> Any:
    for part in key.split("."):
        if not isinstance(node, Mapping) or part not in node:
            return UNSET
        node = node[part]
    return node


def _keys(node: Mapping[str, Any], prefix: str) -> Iterator[str]:
    for key, value in node.items():
        yield f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _keys(value, f"{prefix}{key}.")
