"""Components as `conf/` names them, found by looking there: no test lists them by hand.

Also tiny models of them, masks of padded batches, and the comparison of nested tensors.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import torch
import yaml
from torch import Tensor, nn

from chimera.config.compose import compose, plain
from chimera.config.groups import ZOO as ZOO
from chimera.config.groups import groups, pattern_depth
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
#: Tokens of the texts in a padded batch: odd, the longest, short.
LENGTHS = (11, 16, 3)
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


def ragged(lengths: Iterable[int], *, left: bool) -> Tensor:
    """[b t] mask of sequences of these lengths, padded on the left or on the right."""
    lengths = list(lengths)
    width = max(lengths)
    rows = [[False] * (width - n) + [True] * n for n in lengths]
    return torch.tensor([row if left else row[::-1] for row in rows])


def pad(rows: Sequence[Tensor], *, left: bool) -> tuple[Tensor, Tensor]:
    """Rows of ids in one batch [b t] with arbitrary ids at padding, and the mask [b t]."""
    mask = ragged([len(row) for row in rows], left=left)
    ids = torch.full(mask.shape, 7)
    ids[mask] = torch.cat(list(rows))
    return ids, mask


@torch.no_grad()
def padding_is_neutral(model: nn.Module, rows: Sequence[Tensor], *, left: bool) -> None:
    """A model gives the texts of a padded batch the logits of each text alone."""
    ids, mask = pad(rows, left=left)
    padded = model(ids, mask).logits
    assert torch.isfinite(padded).all()
    for row, got, real in zip(rows, padded, mask, strict=True):
        close(got[real], model(row[None]).logits[0])


def close(a: Any, b: Any, tol: float = 1e-9) -> None:
    """Tensors or nested tuples/lists of them agree to `tol`, relative and absolute."""
    if isinstance(a, Tensor):
        torch.testing.assert_close(a, b, rtol=tol, atol=tol)
    elif isinstance(a, (tuple, list)):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            close(x, y, tol)
    else:
        assert a == b
