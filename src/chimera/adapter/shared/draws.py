"""Keys of dropout for the updates of an adapter, whose layers are called with x alone.

A hook before each mixer, ffn and the whole model keeps the keys that it is called with; an update
reads those of the innermost part around it. A recomputed part is called again, with its own keys.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from chimera.adapter.shared.low_rank import LowRank
from chimera.contract import FFN, Context, Mixer
from chimera.ops.dropout import label, token_keys


class Draws:
    """Keys [b t] of the tokens that a part of the model was called with last; None without."""

    def __init__(self) -> None:
        self.keys: Tensor | None = None

    def of_part(self, part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Hook before a mixer or an ffn: keep the keys of its `Context`."""
        contexts = (value for value in (*args, *kwargs.values()) if isinstance(value, Context))
        self.keys = next((ctx.draws for ctx in contexts), None)

    def of_model(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Hook before a model of `(ids, mask, …, draws)`: keys of its tokens."""
        samples = kwargs.get("draws")
        self.keys = None
        if samples is not None and model.training:
            ids = args[0]
            mask = args[1] if len(args) > 1 else kwargs.get("mask")
            real = ids.new_ones(ids.shape) if mask is None else mask.long()
            self.keys = token_keys(samples, (real.cumsum(1) - 1).clamp(min=0))


def connect(model: nn.Module) -> None:
    """Give the updates of a model that have dropout their keys."""
    updates = [module for module in model.modules() if isinstance(module, LowRank)]
    if not any(update.dropout for update in updates):
        return
    whole = Draws()
    model.register_forward_pre_hook(whole.of_model, with_kwargs=True)

    def walk(module: nn.Module, prefix: str, source: Draws) -> None:
        if isinstance(module, LowRank):
            module.source = source
            module.call = label(prefix)
        if isinstance(module, Mixer | FFN):
            source = Draws()
            module.register_forward_pre_hook(source.of_part, with_kwargs=True)
        for name, child in module.named_children():
            walk(child, f"{prefix}{name}.", source)

    walk(model, "", whole)
