"""Collect the hidden states of every layer during a forward pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn


@contextmanager
def hidden_states(backbone: Any) -> Iterator[list[Tensor]]:
    """The first block's input, then each block's output [b t d], in the order of the pass."""
    states: list[Tensor] = []

    def keep_input(_: nn.Module, given: tuple[Any, ...]) -> None:
        if not states:
            states.append(given[0])

    hooks = [backbone.blocks[0].register_forward_pre_hook(keep_input)]
    for block in backbone.blocks:
        hooks.append(block.register_forward_hook(lambda _m, _i, out: states.append(out.y)))
    try:
        yield states
    finally:
        for hook in hooks:
            hook.remove()
