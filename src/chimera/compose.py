"""From the words of a command line to one resolved configuration, or one clear line why not.

Hydra composes; what it would let pass (a misspelt key behind `+`, a choice it answers with a
traceback, a list where one name belongs) is refused here. Free of torch.
"""

from __future__ import annotations

from collections.abc import Set
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Glob, Override, Sweep
from hydra.core.plugins import Plugins
from hydra.errors import ConfigCompositionException, HydraException, OverrideParseException
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from chimera import schema
from chimera.adjust import bound, drop_leftovers, keys_of, missing_members
from chimera.errors import UserError, nearest, unknown

ROOT = Path(__file__).resolve().parents[2]
CONF = ROOT / "conf"
EXPERIMENTS = ROOT / "experiments"


class ExperimentsOnSearchPath(SearchPathPlugin):
    """Makes `experiments/` a config source of its own.

    A plugin, because Hydra's `glob(*)` does not see groups that only `hydra.searchpath` reaches:
    such a sweep launches no job and exits 0.
    """

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        search_path.append("chimera-experiments", f"file://{EXPERIMENTS}")


def register_experiments() -> None:
    """Tell Hydra of `experiments/`; once a process."""
    Plugins.instance().register(ExperimentsOnSearchPath)


@cache
def groups() -> dict[str, list[str]]:
    """Every config group with its options: `{'mixer': ['attention', …], …}`."""
    found: dict[str, list[str]] = {}
    for root in (CONF, EXPERIMENTS):
        for file in sorted(root.rglob("*.yaml")):
            group = file.parent.relative_to(root).as_posix()
            if group != ".":
                found.setdefault(group, []).append(file.stem)
    return found


def compose(overrides: list[str], *, conf: Path = CONF) -> DictConfig:
    """The configuration of one run, composed, bounded by its scale and checked for its keys.

    Raises:
        UserError: an override that is no override, an unknown choice, an unknown key.
    """
    from chimera import inherit  # which reads runs, whose records name this file's folder

    parsed = check_choices(overrides)
    asked: dict[str, Any] = {o.key_or_group: o.value() for o in parsed}
    own = tuple(line for line, o in zip(overrides, parsed, strict=True) if _is_group(o))
    with _hydra(conf):
        start = asked["init_from"] if "init_from" in asked else _start(own, conf)
    brought = tuple(inherit.words(start, asked, str(asked.get("model")), overrides))
    chosen = (*brought, *own)
    with _hydra(conf):
        scaled, known_keys = _known(chosen, conf)
        for override in parsed:
            if not _is_group(override):
                _check_key(override, known_keys)
        words = [*scaled, *brought, *overrides]
        cfg = _hydra_compose(words)
        while missing := missing_members(cfg, groups()["mixer"]):
            words = [*missing, *words]
            cfg = _hydra_compose(words)
    selected = _selected(cfg)
    drop_leftovers(cfg, selected["preset"], known_keys, conf)
    with open_dict(cfg):
        del cfg["hydra"]
        cfg.choices = {g: c for g, c in selected.items() if _top_level(g) and not _is_experiment(g)}
        cfg.table = _table(selected, cfg.table)
    unknown_keys = set(keys_of(cfg)) - known_keys - {"choices"}
    for key in sorted(unknown_keys):
        if not key.startswith(("choices.", "table.", "mixer.members")):
            raise UserError(
                f"an experiment file sets {key}, which no chosen part has{_hint(key, known_keys)}"
            )
    bound(cfg, set(asked))
    cfg.init_from = start
    inherit.take_over(cfg, asked, overrides)
    if cfg.task.get("teacher"):
        from chimera.teacher import identity_of  # which composes the teacher's run in its turn

        cfg.task.teacher_run = identity_of(cfg.task.teacher, overrides)
    return cfg


def check_choices(overrides: list[str]) -> list[Override]:
    """The overrides, parsed; choices that are single names are checked, sweeps are not yet."""
    parsed = [_parse(text) for text in overrides]
    for override in parsed:
        _check_choice(override)
    return parsed


def _top_level(group: str) -> bool:
    return "/" not in group and "@" not in group


def _selected(cfg: DictConfig) -> dict[str, str]:
    """Every group's choice, those inside composites and those of experiments among them."""
    found = OmegaConf.to_container(cfg.hydra.runtime.choices)
    assert isinstance(found, dict)
    return {
        str(group): choice
        for group, choice in found.items()
        if isinstance(choice, str) and not str(group).startswith("hydra/")
    }


@cache
def _known(chosen: tuple[str, ...], conf: Path) -> tuple[tuple[str, ...], frozenset[str]]:
    """Of these choices: what the scale adds to them, and the keys that the parts chosen have.

    Kept, because the jobs of a table differ in their seed only. Experiments and presets add no
    key of their own: what they set has to be there without them, so that their typos are seen.
    """
    asked = {key for key, _, _ in (line.partition("=") for line in chosen)}
    scale = next((line[6:] for line in reversed(chosen) if line.startswith("scale=")), "none")
    node = yaml.safe_load((conf / "scale" / f"{scale}.yaml").read_text(encoding="utf-8"))
    scaled = tuple(f"{g}={c}" for g, c in node["choices"].items() if g not in asked)
    cfg = _hydra_compose([*scaled, *chosen])
    more = node.get("preset_choices", {}).get(_selected(cfg)["preset"], {})
    if scaled and not schema.attribute(cfg.task._target_, "plain_text", True):
        # Text stands in for text; labelled examples have no stand-in.
        scaled = tuple(line for line in scaled if not line.startswith(("data=", "tokenizer=")))
        scaled += tuple(f"{g}={c}" for g, c in more.items() if g not in asked)
        cfg = _hydra_compose([*scaled, *chosen])
    selected = _selected(cfg)
    if selected["preset"] != "none" or any(map(_is_experiment, selected)):
        parts = {g: c for g, c in selected.items() if not _is_experiment(g)} | {"preset": "none"}
        top = [f"{g}={c}" for g, c in parts.items() if _top_level(g)]
        cfg = _hydra_compose(top)
        there = _selected(cfg)
        inner = [
            f"{'' if g in there else '+'}{g}={c}"
            for g, c in parts.items()
            if not _top_level(g) and there.get(g) != c
        ]
        if inner:
            cfg = _hydra_compose([*top, *inner])
    return scaled, frozenset(keys_of(cfg))


@cache
def _start(chosen: tuple[str, ...], conf: Path) -> str | None:
    """What an experiment or a preset starts from, at this scale; nothing where a model is chosen.

    Args:
        chosen: the choices of the command line.
        conf: folder of the configuration.
    """
    keys = {key.lstrip("+") for key, _, _ in (line.partition("=") for line in chosen)}
    if "model" in keys or not ("preset" in keys or any("/" in key for key in keys)):
        return None
    cfg = _hydra_compose(list(chosen))
    own = cfg.scale.get("preset_values", {}).get(_selected(cfg)["preset"]) or {}
    start = own.get("init_from", cfg.init_from)
    return None if start is None else str(start)


def _is_experiment(group: str) -> bool:
    return not (CONF / group.partition("@")[0]).is_dir()


def _table(selected: dict[str, str], node: Any) -> dict[str, Any] | None:
    """The table that the run is a row of, and the row; a table alone is a sweep's, and refused."""
    mine = {group: choice for group, choice in selected.items() if _is_experiment(group)}
    rows = [(group, choice) for group, choice in mine.items() if "/" in group]
    if rows:
        return {"name": rows[-1][0], "row": rows[-1][1], **(node or {})}
    if not mine:
        return None
    paper, table = next(iter(mine.items()))
    raise UserError(
        f"+{paper}={table} is a table: train.py -m +{paper}={table} runs all its rows,"
        f" +{paper}/{table}=<row> one of {', '.join(groups()[f'{paper}/{table}'])}"
    )


class _hydra:  # noqa: N801 - used as a function would be
    """A Hydra of our own for a few composes, whatever Hydra is running around us."""

    def __init__(self, conf: Path) -> None:
        self.conf = conf

    def __enter__(self) -> None:
        self.before = GlobalHydra.instance().hydra
        GlobalHydra.instance().clear()
        register_experiments()
        initialize_config_dir(version_base="1.3", config_dir=str(self.conf)).__enter__()

    def __exit__(self, *_: object) -> None:
        GlobalHydra.instance().clear()
        if self.before is not None:
            GlobalHydra.instance().initialize(self.before)


def _hydra_compose(overrides: list[str]) -> DictConfig:
    try:
        return hydra_compose("config", overrides=overrides, return_hydra_config=True)
    except (HydraException, OmegaConfBaseException) as error:
        cause = error.__cause__ if isinstance(error, ConfigCompositionException) else error
        raise UserError(" ".join(str(cause or error).split())) from error


def _parse(text: str) -> Override:
    try:
        return OverridesParser.create().parse_overrides([text])[0]
    except (OverrideParseException, HydraException) as error:
        hint = "" if "=" in text else "; a choice is written group=name, a value key=value"
        raise UserError(f"cannot read the override '{text}'{hint}") from error


def _is_group(override: Override) -> bool:
    return override.key_or_group in groups()


def _names_part(override: Override) -> bool:
    """Group choices of the run itself; experiments are left out, so that their typos are seen."""
    return (CONF / override.key_or_group).is_dir()


def _check_choice(override: Override) -> None:
    group = override.key_or_group
    if override.is_delete():
        raise UserError(
            f"~{group} deletes; a part is left out by choosing none, as in adapter=none"
        )
    if not _is_group(override):
        return
    value = override.value()
    if isinstance(value, Sweep | Glob):  # `a,b` names options; `glob(*)` finds them itself
        for name in value.list if isinstance(value, ChoiceSweep) else []:
            if str(name) not in groups()[group]:
                raise unknown(group, str(name), groups()[group])
        return
    if not isinstance(value, str):
        raise UserError(
            f"{group}={_shown(value)} is no single name; choose one of {', '.join(groups()[group])}"
        )
    if value not in groups()[group]:
        raise unknown(group, value, groups()[group])
    if override.is_add() and _names_part(override) and not override.package:
        raise UserError(f"+{group}={value}: {group} has a choice already; drop the +")
    if not override.is_add() and not _names_part(override):
        raise UserError(f"{group}={value} is an experiment; write +{group}={value}")


def _check_key(override: Override, known: Set[str]) -> None:
    key = override.key_or_group
    if key not in known and not key.startswith("hydra"):
        raise UserError(f"{key} is no key of this configuration{_hint(key, known)}")
    if override.is_add() and not override.is_force_add():
        raise UserError(f"+{key}: {key} is there already; drop the +")


def _hint(key: str, known: Set[str]) -> str:
    """What was probably meant: the leaf under another parent, a near spelling, or what there is."""
    parent, _, leaf = key.rpartition(".")
    elsewhere = sorted(k for k in known if k.rpartition(".")[2] == leaf)
    if elsewhere:
        return f"; did you mean '{elsewhere[0]}'?"
    beside = sorted(k for k in known if k.rpartition(".")[0] == parent and "_target_" not in k)
    if not parent:
        return nearest(key, {*known, *groups()}) or f" (top level has {', '.join(beside)})"
    has = ", ".join(k.rpartition(".")[2] for k in beside)
    return nearest(key, beside) or nearest(key, known) or (f" ({parent} has {has})" if has else "")


def _shown(value: object) -> str:
    return str(value).replace("'", "")
