"""From the words of a command line to one resolved configuration, or one clear line why not.

Hydra composes; what it would let pass (a misspelt key behind `+`, a choice it answers with a
traceback, a list where one name belongs) is refused here. Free of torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override, Sweep
from hydra.core.plugins import Plugins
from hydra.errors import ConfigCompositionException, HydraException, OverrideParseException
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

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
    parsed = check_choices(overrides)
    chosen = [o.input_line or "" for o in parsed if _is_group(o)]
    with _hydra(conf):
        known = _hydra_compose(
            [line for line, o in zip(overrides, parsed, strict=True) if _names_part(o)]
        )
        known_keys = set(_keys(known))
        for override in parsed:
            if not _is_group(override):
                _check_key(override, known_keys)
        cfg = _hydra_compose(overrides)
        while missing := _missing_members(cfg):
            chosen += missing
            cfg = _hydra_compose([*missing, *overrides])
            overrides = [*missing, *overrides]
    selected = OmegaConf.to_container(cfg.hydra.runtime.choices)
    assert isinstance(selected, dict)
    with open_dict(cfg):
        del cfg["hydra"]
        cfg.choices = {
            g: c for g, c in selected.items() if isinstance(c, str) and _top_level(str(g))
        }
    unknown_keys = set(_keys(cfg)) - known_keys - {"choices"}
    for key in sorted(unknown_keys):
        if not key.startswith(("choices.", "mixer.members")):
            raise UserError(
                f"an experiment file sets {key}, which no chosen part has{_hint(key, known_keys)}"
            )
    return _bound(cfg)


def check_choices(overrides: list[str]) -> list[Override]:
    """The overrides, parsed; choices that are single names are checked, sweeps are not yet."""
    parsed = [_parse(text) for text in overrides]
    for override in parsed:
        _check_choice(override)
    return parsed


def _top_level(group: str) -> bool:
    return "/" not in group and "@" not in group


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
    if isinstance(value, Sweep):  # `a,b` names options; `glob(*)` finds them itself
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


def _check_key(override: Override, known: set[str]) -> None:
    key = override.key_or_group
    if key not in known and not key.startswith("hydra"):
        raise UserError(f"{key} is no key of this configuration{_hint(key, known)}")
    if override.is_add() and not override.is_force_add():
        raise UserError(f"+{key}: {key} is there already; drop the +")


def _hint(key: str, known: set[str]) -> str:
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


def _keys(cfg: DictConfig, prefix: str = "") -> Iterator[str]:
    for key in map(str, cfg):
        if key == "hydra" and not prefix:
            continue
        yield f"{prefix}{key}"
        node = cfg._get_node(key)
        if isinstance(node, DictConfig) and not node._is_none() and not node._is_missing():
            yield from _keys(node, f"{prefix}{key}.")


def _missing_members(cfg: DictConfig) -> list[str]:
    """Overrides that bring in mixers which a composite's `cycle` names and does not hold yet."""
    mixer: Any = cfg.get("mixer") or {}
    if "cycle" not in mixer or "members" not in mixer:
        return []
    for name in mixer.cycle:
        if name not in groups()["mixer"]:
            raise unknown("mixer.cycle", str(name), groups()["mixer"])
    return [
        f"+mixer@mixer.members.{n}={n}"
        for n in dict.fromkeys(mixer.cycle)
        if n not in mixer.members
    ]


def _bound(cfg: DictConfig) -> DictConfig:
    """Put the scale's upper bounds on the configuration: composed last, they win over every row."""
    bounds: dict[str, Any] = dict(cfg.scale.bounds)
    for key, most in bounds.items():
        parent, _, leaf = key.rpartition(".")
        node = OmegaConf.select(cfg, parent)
        if node is None or leaf not in node:
            continue
        value = node[leaf]
        if value is None or (isinstance(value, int | float) and value > most):
            node[leaf] = most
    return cfg
