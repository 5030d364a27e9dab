"""Read the overrides of a command line: parse them, check choices and keys, set values."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence, Set
from functools import lru_cache
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Glob, Override
from hydra.errors import HydraException
from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict

from chimera import dotted
from chimera.config.choices import keys_of
from chimera.config.groups import ZOO, groups, is_part
from chimera.config.hydra_calls import one_line
from chimera.config.migration_hints import (
    advice,
    check_hydra,
    group_advice,
    key_advice,
    option_advice,
    section_advice,
)
from chimera.config.schema import RESERVED, arguments, check_targets
from chimera.errors import UserError, nearest, unknown
from chimera.program import command_name

#: Mappings whose entries `~` may delete; other keys always have a value.
MAPPINGS = ("optim.rates", "optim.decays")
#: Group of which several options may be chosen at once: `logger=[csv,wandb]`.
SEVERAL = "logger"
#: Keys that an empty value would leave out without a word.
EMPTY = ("run_dir", "init_from", "ckpt_path")
#: Keys that the composition sets, and what it reads for them.
COMPUTED = {
    "init_run": "init_from=",
    "ckpt_sha256": "ckpt_path=",
    "task.teacher_run": "task.teacher=",
}
#: Most brackets of an override: Hydra's parser falls over deep ones, after minutes.
NESTED = 300
#: Prefix of what is set for the row that a run starts from (`start_model.py`).
NEEDS = "needs."
#: Any component of the model has a key below these; the model's check refuses others.
OPEN = tuple(f"{mapping}." for mapping in MAPPINGS)
#: A setting whose value is below the home folder; Hydra's grammar has no `~` in a value.
_HOME = re.compile(r"^([\w.+]+=)~/")
#: A setting whose value has letters that Hydra's grammar lacks, as names of folders do, and no sign
#: of that grammar.
_FOREIGN = re.compile(r"""^([\w.+]+=)((?=.*[^\x00-\x7f])[^][{}()"',\\$]+)$""")


class CommandLine:
    """Overrides of a run, read and checked.

    Args:
        parsed: by Hydra; `texts` has them as they are written, `settings` the value by key or
            group, `choices` those that choose an option of a group.
    """

    def __init__(self, parsed: list[Override]) -> None:
        self.parsed = parsed
        self.texts = [str(override.input_line) for override in parsed]
        self.settings: dict[str, Any] = {each.key_or_group: each.value() for each in parsed}
        self.choices = [str(each.input_line) for each in parsed if is_choice(each)]


def read(overrides: Sequence[str]) -> CommandLine:
    """Read the overrides of one run.

    Several options of a group, as in `logger=[csv,wandb]`, become a choice of each, whose node is
    below its name: `logger.csv`, `logger.wandb`.

    Raises:
        UserError: an override that cannot be read, or an unknown choice.
    """
    found = list[Override]()
    for override in check_choices(canonical(list(overrides))):
        names = override.value()
        if override.key_or_group == SEVERAL and isinstance(names, list):
            for name in names:
                if name == "none" or names.count(name) > 1:
                    wrong = "no logger" if name == "none" else "named twice"
                    raise UserError(f"{SEVERAL}={name} is {wrong}; leave it out of the list")
            each = (f"+{SEVERAL}@{SEVERAL}.{name}={name}" for name in names)
            found += map(_parse, (f"{SEVERAL}=none", *each))
        else:
            found.append(override)
    return CommandLine(found)


def canonical(overrides: list[str]) -> list[str]:
    """Rewrite Hydra's other ways to write a choice: `++mixer=retnet` and `~adapter`.

    `~group` chooses `none` where a group has it, `~callbacks.<name>` leaves a callback out. A value
    that begins with `~/` is below the home folder; a shell leaves it so in `data.path=~/texts`.

    Raises:
        UserError: an override that cannot be read.
    """
    found = list[str]()
    for text in overrides:
        text = _HOME.sub(lambda match: f"{match[1]}{Path.home()}/", text)
        text = _FOREIGN.sub(r'\1"\2"', text)
        override = _parse(text)
        key = override.key_or_group
        if override.is_force_add() and is_choice(override) and not override.package:
            text = text.removeprefix("++" if is_part(key) else "+")
        elif override.is_delete() and override.value() is None and not override.package:
            if "none" in groups().get(key, ()):
                text = f"{key}=none"
            elif key.startswith("callbacks."):
                text = f"{key}=null"
        found.append(text)
    return found


def check_choices(overrides: list[str], *, sweep: bool = False) -> list[Override]:
    """Parse the overrides and check all choices of groups.

    Of a sweep, the names in `a,b` are checked; a `glob(…)` selects existing names itself.

    Args:
        overrides: as `canonical` returns them.
        sweep: whether they are of a sweep, which takes several values.

    Raises:
        UserError: an override that cannot be read, a deletion, an unknown choice, a `+` too many
            or too few, a setting of Hydra's own.
    """
    parsed = [_parse(text) for text in overrides]
    for override in parsed:
        check_hydra(override.key_or_group)
        _check_choice(override, sweep=sweep)
    return parsed


@lru_cache(maxsize=10_000)  # the jobs of a sweep share most of their overrides
def _parse(text: str) -> Override:
    if sum(map(text.count, "[{(")) > NESTED:
        raise UserError(f"cannot read the override '{text}'; it has over {NESTED} brackets")
    try:
        return OverridesParser.create().parse_overrides([text])[0]
    except (HydraException, ValueError) as error:  # a ValueError of a number of thousands of digits
        key, equals, value = text.partition("=")
        of = [f"{group}={text}" for group in ZOO if text in groups()[group]]
        of += [text.replace(":", "=", 1)] if ":" in text else []
        of += [f"{text}=<name>"] if text in groups() else []
        like = f", as in {of[0]}" if of else ""
        hint = f"; a choice is written group=name, a value key=value{like}"
        if value.startswith("="):
            hint = f"; write {key}={value.lstrip('=')}"
        elif equals:
            quoted = value.replace("\\", "\\\\").replace('"', '\\"')
            hint = f"; in quotes any text is a value: '{key}=\"{quoted}\"'"
        raise UserError(f"cannot read the override '{text}'{hint}") from error


def is_choice(override: Override) -> bool:
    """Whether an override chooses an option of a group."""
    return override.key_or_group in groups()


def _check_choice(override: Override, *, sweep: bool) -> None:
    group = override.key_or_group
    value = override.value()
    text = override.input_line
    if override.is_delete() and (value is not None or group.rpartition(".")[0] not in MAPPINGS):
        raise UserError(
            f"{text} deletes a key, which only ~callbacks.<name>, ~optim.rates.<name> and"
            " ~optim.decays.<name> do; to leave a part out, choose none, as in adapter=none"
        )
    if isinstance(value, Glob) and not is_choice(override):
        meant = f"; {advice(group)}" if advice(group) else nearest(group, groups())
        raise UserError(f"{text}: {group} is no group{meant}")
    listed = value.list if isinstance(value, ChoiceSweep) else value
    names = [str(name) for name in listed] if isinstance(listed, list) else [str(listed)]
    if is_choice(override) and not isinstance(value, Glob):
        for name in names:
            if name not in groups()[group]:
                raise _unknown_option(group, name)
    for name in names:
        if not is_choice(override) and (text := option_advice(group, name)):
            raise UserError(f"{group}={name} is not known; {text}")
    if override.is_sweep_override():
        if not sweep:
            all_in_one = f"; all in one run: '{group}=[{','.join(names)}]'"
            raise UserError(
                f"{text} gives several values; {command_name('train')} -m … trains each in a run of"
                f" its own{all_in_one if group == SEVERAL else ''}"
            )
    elif not is_choice(override):
        return
    elif not isinstance(value, str) and group != SEVERAL:
        raise UserError(f"{text} is not one name; choose one of {', '.join(groups()[group])}")
    elif override.is_add() and is_part(group) and not override.package:
        raise UserError(f"+{group}={value}: {group} already has a choice; drop the +")
    elif not override.is_add() and not is_part(group):
        raise UserError(f"{group}={value} is an experiment; write +{group}={value}")


def _unknown_option(group: str, name: str) -> UserError:
    """The error for an unknown choice: what it is called here, or the names that there are."""
    if text := option_advice(group, name):
        return UserError(f"{group}={name} is not known; {text}")
    see = f"{command_name('train')} list {group}"
    error = unknown(group, name, groups()[group], see=see)
    return UserError(f"{error}{group_advice(group, name)}")


def repeated(overrides: Sequence[str]) -> list[str]:
    """A line on each key that is set more than once, of which the last counts."""
    found = dict[str, list[str]]()
    for override in map(_parse, overrides):
        key = f"{override.key_or_group}@{override.package}"
        found.setdefault(key, []).append(str(override.input_line))
    return [
        f"{', '.join(words[:-1])}: overridden by {words[-1]}, which comes later"
        for words in found.values()
        if len(words) > 1
    ]


def set_values(cfg: DictConfig, line: CommandLine, known_keys: set[str]) -> None:
    """Set each `key=value`; an argument that a class has and no file sets becomes a known key.

    Raises:
        UserError: naming a key that does not exist, or a value that its key does not take.
    """
    for override in line.parsed:
        key = override.key_or_group
        if is_choice(override) or key.startswith(NEEDS):
            continue
        if key in known_keys or not _is_argument(cfg, key, line.settings):
            _check_key(override, known_keys)
        elif override.is_add() or override.is_force_add():
            known_keys.add(key)
        else:
            text = override.input_line
            raise UserError(
                f"{text}: no file sets {key}; if its class has this argument, write +{text}"
            )
        if override.is_delete():
            with open_dict(cfg):
                dotted.drop(cfg, key)
            continue
        _check_entry(override, OmegaConf.select(cfg, key, throw_on_resolution_failure=False))
        with one_line():
            OmegaConf.update(cfg, key, override.value(), merge=True, force_add=True)


def _is_argument(cfg: DictConfig, key: str, settings: Mapping[str, Any]) -> bool:
    """Whether a key is an argument of its node's class that no YAML file names.

    The arguments of a class of another package are checked later, when it is imported.
    """
    parent, _, name = key.rpartition(".")
    node = OmegaConf.select(cfg, parent) if parent else None
    if not isinstance(node, DictConfig) or name in node:
        return False
    target = str(settings.get(f"{parent}._target_", node.get("_target_") or ""))
    return name in arguments(target) if target.startswith("chimera.") else bool(target)


def _check_key(override: Override, known_keys: Set[str]) -> None:
    """Refuse `key=value` for an unknown key and `+key=value` for a known one.

    Args:
        override: a `key=value`.
        known_keys: dotted keys of the configuration.

    Raises:
        UserError: naming the key, and near keys.
    """
    key = override.key_or_group
    adds = override.is_add() or override.is_force_add()
    if key in COMPUTED:
        raise UserError(f"{key} is no setting: it is computed from {COMPUTED[key]}")
    if adds and key.startswith("callbacks."):  # the user's own callback
        return
    if key not in known_keys and (override.is_delete() or not key.startswith(OPEN)):
        raise UserError(f"{key} is no key of this configuration{hint(key, known_keys)}")
    # Templates for Lightning list few of the Trainer's arguments, so their users add the others.
    if key in known_keys and override.is_add() and not key.startswith("trainer."):
        raise UserError(f"+{key}: {key} exists already; drop the +")


def _check_entry(override: Override, now: object) -> None:
    """Refuse a value for a key that holds a mapping (`optim.schedule=cosine`), and an empty path.

    Args:
        override: a `key=value`.
        now: what the key holds.

    Raises:
        UserError: naming the group, or the entries.
    """
    key = override.key_or_group
    value = override.value()
    if value == "" and key in EMPTY:  # of a variable of the shell that is not set, say
        raise UserError(f"{key}= is empty; give it a value, or leave it out")
    if isinstance(now, ListConfig) and isinstance(value, Mapping):
        raise UserError(f"{override.input_line}: {key} is a list; write '{key}=[{{…}}]'")
    if not isinstance(now, Mapping) or value is None or isinstance(value, Mapping):
        return
    group = key.rpartition(".")[2]
    if str(value) in groups().get(group, ()):
        raise UserError(f"{override.input_line} names a choice; write {group}={value}")
    names = ", ".join(str(name) for name in now if str(name) not in RESERVED)
    raise UserError(
        f"{override.input_line} would replace a mapping; set an entry of it, as in"
        f" {key}.<name>=…{f' (it has {names})' if names else ''}"
    )


def refuse_unknown(cfg: DictConfig, known_keys: Set[str]) -> None:
    """Refuse a node without a class, and a key that a file sets and no chosen part has."""
    values = dict(dotted.walk(OmegaConf.to_container(cfg)))
    check_targets(values)
    for key in sorted(values.keys() - known_keys):
        if not key.startswith(("table.", "mixer.members", "callbacks.", *OPEN)):
            raise UserError(
                f"an experiment or preset sets {key}, which no chosen part has"
                f"{hint(key, known_keys)}"
            )


def hint(key: str, known_keys: Set[str]) -> str:
    """End of an error message about an unknown key.

    Suggests the setting that has the key's place here, the same leaf under another parent, a near
    spelling, or the parent's keys.
    """
    if text := key_advice(key):
        return f"; {text}"
    parent, _, leaf = key.rpartition(".")
    settable = sorted(k for k in known_keys if not k.startswith("scale."))
    by_leaf = {k.rpartition(".")[2]: k for k in reversed(settable)}
    if of := [o for o in groups().get(parent, ()) if key in keys_of(parent, o)]:
        listed = f"{', '.join(of[:3])}{' and others' if len(of) > 3 else ''}"
        return f"; it is a key of {parent}={listed}; write {parent}={of[0]} {key}=…"
    if leaf in by_leaf:
        return f"; did you mean '{by_leaf[leaf]}'?"
    if text := section_advice(key):
        return f"; {text}"
    siblings = sorted(k for k in settable if k.rpartition(".")[0] == parent and "._" not in k)
    leaves = [sibling.rpartition(".")[2] for sibling in siblings]
    if not parent:
        listed = f"; {command_name('train')} --help lists groups, --cfg job all keys"
        return nearest(key, {*settable, *groups()}) or listed
    # Leaves alone are compared: a common parent would make any two keys look alike.
    if close := difflib.get_close_matches(leaf, leaves, n=1, cutoff=0.6):
        return f"; did you mean '{parent}.{close[0]}'?"
    return f" ({parent} has {', '.join(leaves)})" if leaves else nearest(key, known_keys)
