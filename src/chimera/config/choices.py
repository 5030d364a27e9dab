"""Find all choices that a command line leads to, from Hydra's list of files, without composing.

A choice may imply others: a preset or a table's row chooses parts, a scale replaces the data set by
a small one, `init_from` chooses the parts of its model, a list of mixers chooses its members. All
of them follow from the list of files, so each distinct set of choices is composed only once.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, open_dict

from chimera.config import static
from chimera.config.groups import groups, is_part
from chimera.config.roots import find
from chimera.config.search_path import composed, defaults_list, hydra_on
from chimera.errors import unknown

#: Key of a part's YAML that chooses other parts; the composition removes it.
COMPANIONS = "with"
#: Key of a preset or row that says what a scale means for it; the composition removes it.
AT = "at"
#: Marks a key that the command line does not set.
UNSET: Any = object()


@dataclass(frozen=True)
class Selection:
    """Options and files of a set of choices.

    Args:
        options: group to option, including groups inside composites (`mixer@mixer.members.x`) and
            groups of experiments.
        files: (group, package, contents) of each file in the order of composition.
    """

    options: dict[str, str]
    files: tuple[tuple[str, str, dict[str, Any]], ...]

    def value(self, key: str, default: Any = None) -> Any:
        """Value of a dotted key in the last file that sets it; `default` if none does."""
        for _, package, node in reversed(self.files):
            inside = key.removeprefix(f"{package}.") if package else key
            if (inside != key or not package) and (value := _select(node, inside)) is not UNSET:
                return value
        return default

    def keys(self) -> Iterator[str]:
        """All dotted keys of the chosen parts.

        Keys of experiments and presets are left out: these files may only set keys that a part has,
        so a misspelt key in them is found.
        """
        for group, package, node in self.files:
            if group == "preset" or is_experiment(group):
                continue
            parts = package.split(".") if package else []
            yield from (".".join(parts[: n + 1]) for n in range(len(parts)))
            yield from _keys(node, f"{package}." if package else "")


def is_experiment(group: str) -> bool:
    """Whether a group belongs to `experiments/` or another folder of tables."""
    return not is_part(group.partition("@")[0])


def is_top_level(group: str) -> bool:
    """Whether a group is neither inside a composite nor a table of experiments."""
    return "/" not in group and "@" not in group


@cache
def select(overrides: tuple[str, ...], conf: Path) -> Selection:
    """Resolve group overrides to options and files."""
    with hydra_on(conf):
        listed = defaults_list(overrides)
    options = {g: o for g, o in listed.overrides.known_choices.items() if isinstance(o, str)}
    files = []
    for default in listed.defaults:
        path = default.config_path
        if path is None or path.startswith(("hydra/", "_dummy")):
            continue
        files.append((path.rpartition("/")[0], default.package or "", _read(conf, path)))
    return Selection({g: o for g, o in options.items() if not g.startswith("hydra/")}, tuple(files))


@cache
def compose_choices(overrides: tuple[str, ...], conf: Path) -> bytes:
    """Compose the configuration of group overrides, without Hydra's own node; cached.

    Each job of a sweep gets a copy. Pickled, it takes a sixth of the time of OmegaConf's deepcopy.
    """
    with hydra_on(conf):
        cfg = composed(overrides)
    with open_dict(cfg):
        del cfg["hydra"]
        cfg.pop(AT, None)
        _drop_companions(cfg)
    return pickle.dumps(cfg)


def _drop_companions(node: DictConfig) -> None:
    for child in map(node._get_node, node):
        if isinstance(child, DictConfig) and not child._is_none():
            child.pop(COMPANIONS, None)
            _drop_companions(child)


def configuration(overrides: tuple[str, ...], conf: Path) -> DictConfig:
    """Compose the configuration of group overrides; returns a copy that the caller may change."""
    cfg: DictConfig = pickle.loads(compose_choices(overrides, conf))
    return cfg


def init_from_of(chosen: Selection, overrides: Sequence[str]) -> str | None:
    """`init_from` of the chosen row or preset at the chosen scale; None if `model=` is chosen."""
    names = {override.lstrip("+").partition("=")[0] for override in overrides}
    if "model" in names or not ("preset" in names or any("/" in name for name in names)):
        return None
    path = scale_of(chosen)["values"].get("init_from", chosen.value("init_from"))
    return None if path is None else str(path)


def scale_choices(chosen: Selection, overrides: Sequence[str]) -> list[str]:
    """Choices that the scale makes, without groups that the command line chooses."""
    names = {override.partition("=")[0] for override in overrides}
    general, own = _scale(chosen)
    options = dict(general["choices"])
    if options and not static.attribute(str(chosen.value("task._target_")), "plain_text", True):
        # The scale's data set is plain text; it cannot replace labelled examples.
        options = {g: o for g, o in options.items() if g not in ("data", "tokenizer")}
    options |= own.get("choices", {})
    options = {group: option for group, option in options.items() if option is not None}
    return [f"{group}={option}" for group, option in options.items() if group not in names]


def companion_choices(chosen: Selection, overrides: Sequence[str]) -> list[str]:
    """Choices that a chosen part brings along, without groups that the command line chooses.

    They are under `with:` in its YAML: `mixer=best_combo` is defined with ALiBi.
    """
    names = {override.lstrip("+").partition("=")[0] for override in overrides}
    found = [
        item
        for group, _, node in chosen.files
        if is_top_level(group)
        for item in (node.get(COMPANIONS) or {}).items()
    ]
    return [f"{group}={option}" for group, option in found if group not in names]


def member_choices(chosen: Selection, cycle: Any) -> list[str]:
    """Choices for the mixers that a composite's `cycle` names and that have no node yet.

    Args:
        chosen: options and files of the other choices.
        cycle: value of `mixer.cycle` on the command line, or UNSET.

    Raises:
        UserError: an unknown mixer.
    """
    names = chosen.value("mixer.cycle") if cycle is UNSET else cycle
    if not isinstance(names, list):
        return []
    mixers = groups()["mixer"]
    for name in names:
        if name not in mixers:
            raise unknown("mixer.cycle", str(name), mixers)
    member_groups = {name: f"mixer@mixer.members.{name}" for name in dict.fromkeys(names)}
    return [f"+{g}={name}" for name, g in member_groups.items() if g not in chosen.options]


def scale_of(chosen: Selection) -> dict[str, Any]:
    """The scale's file with what presets and rows say under `at: {<scale>: …}`, the last one first.

    A null takes a bound, a choice or a share away.
    """
    general, own = _scale(chosen)
    merged = {**general, **{kind: general.get(kind, {}) | node for kind, node in own.items()}}
    for kind in ("bounds", "choices", "shares"):
        entries = merged.get(kind, {}).items()
        merged[kind] = {key: value for key, value in entries if value is not None}
    return merged


def _scale(chosen: Selection) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The scale's file, and what presets and rows say at it."""
    own: dict[str, dict[str, Any]] = {}
    for _, _, node in chosen.files:
        for kind, entries in ((node.get(AT) or {}).get(chosen.options["scale"]) or {}).items():
            own[kind] = own.get(kind, {}) | entries if entries is not None else {}
    return next(node for group, _, node in chosen.files if group == "scale"), own


@cache
def _read(conf: Path, path: str) -> dict[str, Any]:
    inside = conf / f"{path}.yaml"
    file = inside if inside.is_file() else find(path)
    node = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
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
