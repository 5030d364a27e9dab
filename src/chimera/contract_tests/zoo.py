"""Components as `conf/` names them, found by looking there: no test lists them by hand."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import cache
from typing import Any

import torch
import yaml
from torch import Tensor

from chimera.config.compose import compose, plain
from chimera.config.groups import ZOO, groups, pattern_depth
from chimera.config.settings import Model
from chimera.model.assemble import Choices, build_model, choose
from chimera.model.language import LanguageModel
from chimera.paths import CONF

#: What the rest of a model is where a test is about one part.
PLAIN = {
    "mixer": "attention",
    "norm": "layernorm",
    "quant": "none",
    "ffn": "mlp",
    "position": "none",
    "adapter": "none",
}
TINY = Model(dim=32, depth=2, heads=4, max_len=32, init_std=0.2)


def names(group: str) -> list[str]:
    """All choices of a group."""
    return groups()[group]


def distinct(group: str) -> list[str]:
    """Choices of a group that build a class of their own; others differ from one in its options."""
    first: dict[str, str] = {}
    for name in names(group):
        file = CONF / group / f"{name}.yaml"  # composing all takes seconds
        node = yaml.safe_load(file.read_text(encoding="utf-8")) if file.exists() else {}
        first.setdefault(node.get("_target_", name), name)
    return list(first.values())


@cache
def _node(group: str, name: str) -> dict[str, Any]:
    return plain(compose([f"{group}={name}", "data=text", "data.path=x"]))[group]


def config(**choices: str) -> dict[str, Any]:
    """The six groups' configuration, plain ones where none is named."""
    chosen = {**PLAIN, **choices}
    nodes = {group: copy.deepcopy(_node(group, name)) for group, name in chosen.items()}
    return {**nodes, "choices": chosen}


def choices(**chosen: str) -> Choices:
    """Factories of these choices."""
    return choose(config(**chosen))


def tiny(mixer: str) -> Model:
    """A small shape in which each member of a pattern has a layer."""
    return replace(TINY, depth=pattern_depth(mixer))


def model(
    settings: Model = TINY, *, causal: bool = False, vocab_size: int = 64, **chosen: str
) -> LanguageModel:
    """A tiny model of these choices."""
    return build(settings, chosen, causal=causal, vocab_size=vocab_size)


def build(
    settings: Model, chosen: dict[str, str], *, causal: bool = False, vocab_size: int = 64
) -> LanguageModel:
    """The same, of choices in a dictionary."""
    torch.manual_seed(0)
    return build_model(settings, choices(**chosen), vocab_size=vocab_size, causal=causal)


def tokens(batch: int = 2, length: int = 16, vocab_size: int = 64) -> Tensor:
    """Random token ids, the same each time."""
    generator = torch.Generator().manual_seed(1)
    return torch.randint(vocab_size, (batch, length), generator=generator)


__all__ = [
    "PLAIN", "TINY", "ZOO", "build", "choices", "config", "distinct", "model", "names", "tiny",
    "tokens",
]  # fmt: skip
