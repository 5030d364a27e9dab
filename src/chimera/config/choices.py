"""Find all choices that a command line leads to, from Hydra's list of files, without composing.

A choice may imply others: a preset or a table's row chooses parts, a scale replaces the data set by
a small one, `init_from` chooses the parts of its model, a list of mixers chooses its members. All
of them follow from the list of files, so each distinct set of choices is composed only once.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache, partial
from typing import Any, Literal, cast, get_type_hints

from omegaconf import DictConfig, OmegaConf, flag_override

from chimera import dotted
from chimera.config.groups import groups, is_part
from chimera.config.hydra_calls import listed_files, one_line
from chimera.config.schema import LATER, attribute, check_value
from chimera.config.settings import Scale
from chimera.errors import unknown

#: Key of a part's YAML that chooses other parts.
COMPANIONS = "with"
#: Key of a preset or row that says what a scale means for it.
AT = "at"
#: Keys of a file that speak of choices; the composition leaves them out.
_OF_CHOICES = (COMPANIONS, AT, "needs")


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
            if dotted.has(whole := dotted.nested(package, node), key):
                return dotted.get(whole, key)
        return default

    def part_keys(self) -> Iterator[str]:
        """All dotted keys of the chosen parts.

        Keys of experiments and presets are left out: these files may only set keys that a part has,
        so a misspelt key in them is found.
        """
        for group, package, node in self.files:
            if group != "preset" and not is_experiment(group):
                yield from (key for key, _ in dotted.walk(dotted.nested(package, node)))


def is_experiment(group: str) -> bool:
    """Whether a group belongs to `experiments/` or another folder of tables."""
    return not is_part(group.partition("@")[0])


@cache
def select(overrides: tuple[str, ...]) -> Selection:
    """Resolve group overrides to options and files."""
    options, listed = listed_files(overrides)
    files = tuple((group, package, later(group, node)) for group, package, node in listed)
    for group, _, node in files:
        if group == "scale" or AT in node or COMPANIONS in node:
            _check_implied(f"{group}={options.get(group)}", group, node)
    return Selection(options, files)


def later(group: str, node: dict[str, Any]) -> dict[str, Any]:
    """A file's contents; a part that the model or a composite calls itself needs not say so."""
    called = group in LATER and "_target_" in node
    return {"_partial_": True} | node if called else node


def _check_implied(where: str, group: str, node: Mapping[str, Any]) -> None:
    """Check what a file says of other choices and of scales.

    Args:
        where: the choice of the file, for the message.
        group: of the file.
        node: its contents.

    Raises:
        UserError: an unknown scale, choice or kind of setting, or a value of another type.
    """
    one_of = cast(Any, Literal)
    options = {g: one_of[tuple(names)] for g, names in groups().items() if is_part(g)}
    or_none = {group: names | None for group, names in options.items()}
    kinds = get_type_hints(Scale, include_extras=True) | {"choices": or_none}
    says = {COMPANIONS: options, AT: dict.fromkeys(groups()["scale"], kinds)}
    if group == "scale":
        check_value(f"{where}:", node, kinds | {"_target_": str})
    else:
        check_value(f"{where}:", {key: node[key] for key in says if key in node}, says)


@cache
def keys_of(group: str, option: str | None = None) -> frozenset[str]:
    """Dotted keys of all parts that an option of a group has; those of any option if it is None."""
    options = groups()[group] if option is None else [option]
    return frozenset(key for o in options for key in select((f"{group}={o}",)).part_keys())


def configuration(overrides: tuple[str, ...]) -> DictConfig:
    """Compose the configuration of group overrides; returns a copy that the caller may change."""
    return pickle.loads(merged_files(overrides))


@cache
def merged_files(overrides: tuple[str, ...]) -> bytes:
    """The files of group overrides in one configuration, pickled.

    Each job of a sweep gets a copy. Pickled, it takes a sixth of the time of OmegaConf's deepcopy.
    """
    cfg = OmegaConf.create()
    with one_line(), flag_override(cfg, "no_deepcopy_set_nodes", True):
        for _, package, node in select(overrides).files:
            settings = {key: value for key, value in node.items() if key not in _OF_CHOICES}
            cfg.merge_with(dotted.nested(package, settings))
    return pickle.dumps(cfg)


def implied_choices(choices: Sequence[str], settings: Mapping[str, Any]) -> tuple[str, ...]:
    """All choices: those of scale, parts and lists of mixers, then the given ones, which win.

    Args:
        choices: of the command line and of the model to start from.
        settings: values by key of the command line.

    Raises:
        UserError: an unknown mixer.
    """
    given = {choice.lstrip("+").partition("=")[0] for choice in choices}
    found = tuple(choices)
    for implied in (_of_scale, _of_parts, partial(_of_cycle, settings=settings)):
        options = implied(select(found))
        found = (*(f"{g}={o}" for g, o in options.items() if g not in given), *found)
    return found


def _of_scale(chosen: Selection) -> dict[str, str]:
    """Choices that the scale makes."""
    general, own = _scale(chosen)
    options = general["choices"]
    if options and not attribute(str(chosen.value("task._target_")), "plain_text", True):
        # The scale's data set is plain text; it cannot replace labelled examples.
        options = {g: o for g, o in options.items() if g not in ("data", "tokenizer")}
    options = options | own["choices"]
    return {group: option for group, option in options.items() if option is not None}


def _of_parts(chosen: Selection) -> dict[str, str]:
    """Choices that a chosen part brings along.

    They are under `with:` in its YAML: `mixer=best_combo` is defined with ALiBi.
    """
    brought = [node.get(COMPANIONS) or {} for _, _, node in chosen.files]
    return {group: option for options in brought for group, option in options.items()}


def _of_cycle(chosen: Selection, settings: Mapping[str, Any]) -> dict[str, str]:
    """Choices for the mixers that a composite's `cycle` names and that have no node yet.

    Args:
        chosen: options and files of the other choices.
        settings: values by key of the command line.

    Raises:
        UserError: an unknown mixer.
    """
    names = settings.get("mixer.cycle", chosen.value("mixer.cycle"))
    if not isinstance(names, list):
        return {}
    for name in names:
        if name not in groups()["mixer"]:
            raise unknown("mixer.cycle", str(name), groups()["mixer"])
    members = {f"mixer@mixer.members.{name}": name for name in names}
    return {f"+{group}": name for group, name in members.items() if group not in chosen.options}


def scale_of(chosen: Selection) -> dict[str, Any]:
    """The scale's file with what presets and rows say under `at: {<scale>: …}`, the last one first.

    A null takes a bound, a choice or a share away.
    """
    general, own = _scale(chosen)
    merged = general | {kind: general[kind] | entries for kind, entries in own.items()}
    for kind in ("bounds", "choices", "shares"):
        merged[kind] = {key: value for key, value in merged[kind].items() if value is not None}
    return merged


def _scale(chosen: Selection) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The scale's file, and what presets and rows say at it."""
    kinds = dict[str, dict[str, Any]]((kind.name, {}) for kind in fields(Scale))
    own = dict(kinds)
    general: dict[str, Any] = dict(kinds)
    for group, _, node in chosen.files:
        if group == "scale":
            general |= {key: value or {} for key, value in node.items()}
        for kind, entries in ((node.get(AT) or {}).get(chosen.options["scale"]) or {}).items():
            own[kind] = {} if entries is None else own[kind] | entries
    return general, own
