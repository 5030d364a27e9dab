"""State of one forward pass for the hooks of LiZAttention (SPEC A4): padding, outputs, masks."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from chimera.adapter.graft.cache import StatefulLayer


class Padding:
    """Padding mask of the current call of the decoder, shared by its layers."""

    mask: Bool[Tensor, "b s"] | None = None

    def read_mask(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Store the padding mask; a forward pre-hook of the decoder.

        Raises:
            ValueError: `attention_mask` is not [batch, tokens], so that padding is unknown.
        """
        mask = argument(module, args, kwargs, "attention_mask")
        if mask is not None and (not torch.is_tensor(mask) or mask.ndim != 2):
            raise ValueError(
                "LiZAttention needs attention_mask as [batch, tokens] or none; static caches,"
                " which expand the mask, are not supported"
            )
        self.mask = None if mask is None or bool(mask.all()) else mask.bool()

    def last(self, tokens: int) -> Bool[Tensor, "b t"] | None:
        """Mask of the last `tokens` tokens, which are those of this call."""
        return None if self.mask is None else self.mask[:, -tokens:]


@dataclass
class Call:
    """Cache layer, hooks and projection outputs of one forward pass of the base attention."""

    layer: StatefulLayer | None
    hooks: list[Any] = field(default_factory=list)
    outputs: dict[str, Tensor] = field(default_factory=dict)


@dataclass
class OutputHook:
    """Forward hook that stores the output of a projection."""

    outputs: dict[str, Tensor]
    name: str

    def __call__(self, _: nn.Module, args: Any, out: Tensor) -> None:
        self.outputs[self.name] = out


def argument(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], *names: str) -> Any:
    """Argument of a call by one of its names, positional or by keyword; None if it is missing."""
    for name in names:
        if name in kwargs:
            return kwargs[name]
    positional = inspect.signature(module.forward).bind_partial(*args).arguments if args else {}
    return next((positional[name] for name in names if name in positional), None)


def local_mask(
    x: Float[Tensor, "b t d"], layer: Any, mask: Tensor | None, max_cache: int
) -> Tensor | None:
    """Limit the base's mask [b|1 1 t s], bool or added to scores, to the last `max_cache` keys."""
    tokens = x.shape[1]
    seen = 0 if layer is None else layer.get_seq_length()
    keys, start = (tokens, 0) if layer is None else layer.get_mask_sizes(tokens)
    if mask is None and keys <= max_cache and tokens == 1:
        return None
    distance = torch.arange(seen, seen + tokens, device=x.device)[:, None]
    distance = distance - torch.arange(start, start + keys, device=x.device)
    visible = ((distance >= 0) & (distance < max_cache))[None, None]
    if mask is None:
        mask = visible
    elif mask.dtype is torch.bool:
        mask = mask & visible
    else:
        mask = mask.masked_fill(~visible, torch.finfo(mask.dtype).min)
    return mask
