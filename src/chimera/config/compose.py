"""From the words of a command line to one resolved configuration, or one clear line why not.

Hydra composes; what it would let pass (a misspelt key behind `+`, a choice it answers with a
traceback, a list where one name belongs) is refused here. Free of torch.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import InterpolationResolutionError

from chimera.config import static as schema
from chimera.config.groups import groups
from chimera.config.overrides import (
    _check_key,
    _hint,
    _is_experiment,
    _is_group,
    check_choices,
)
from chimera.config.scale import bound, drop_leftovers, keys_of, missing_members
from chimera.config.search_path import _hydra, _hydra_compose
from chimera.errors import UserError
from chimera.paths import CONF


def compose(overrides: list[str], *, conf: Path = CONF) -> DictConfig:
    """The configuration of one run, composed, bounded by its scale and checked for its keys.

    Raises:
        UserError: an override that is no override, an unknown choice, an unknown key.
    """
    from chimera.config import (
        init_from as inherit,  # which reads runs, whose records name this file's folder
    )

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
        if not key.startswith(("choices.", "table.", "mixer.members", "callbacks.")):
            raise UserError(
                f"an experiment file sets {key}, which no chosen part has{_hint(key, known_keys)}"
            )
    bound(cfg, set(asked))
    cfg.init_from = start
    inherit.take_over(cfg, asked, overrides)
    if cfg.task.get("teacher"):
        from chimera.train.teacher import (
            identity_of,  # which composes the teacher's run in its turn
        )

        cfg.task.teacher_run = identity_of(cfg.task.teacher, overrides)
    return cfg


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


def plain(cfg: DictConfig) -> dict[str, Any]:
    """The configuration as plain containers, interpolations resolved."""
    try:
        found = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    except InterpolationResolutionError as error:
        raise UserError(" ".join(str(error).split())) from error
    assert isinstance(found, dict)
    return {str(key): value for key, value in found.items()}
