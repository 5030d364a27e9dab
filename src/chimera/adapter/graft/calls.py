"""State of one forward call, for the hooks of LiZAttention (SPEC A4): padding, outputs, masks."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from chimera.adapter.graft.cache import Remembers


class Padding:
    """The padding mask of the current call of the decoder; its layers share it."""

    mask: Bool[Tensor, "b s"] | None = None

    def see(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A forward pre-hook of the decoder.

        Raises:
            ValueError: a mask made beforehand, from which padding cannot be read.
        """
        mask = argument(module, args, kwargs, "attention_mask")
        if mask is not None and (not torch.is_tensor(mask) or mask.ndim != 2):
            raise ValueError(
                "LiZAttention needs attention_mask as [batch, tokens] or none; static caches,"
                " which make it beforehand, are not supported"
            )
        self.mask = None if mask is None or bool(mask.all()) else mask.bool()

    def last(self, tokens: int) -> Bool[Tensor, "b t"] | None:
        """Of the tokens of this call, which the mask has last."""
        return None if self.mask is None else self.mask[:, -tokens:]


@dataclass
class Call:
    """One forward pass of the base attention."""

    layer: Remembers | None
    hooks: list[Any] = field(default_factory=list)
    outputs: dict[str, Tensor] = field(default_factory=dict)


@dataclass
class Tap:
    """Keeps the output of a projection."""

    outputs: dict[str, Tensor]
    name: str

    def __call__(self, _: nn.Module, args: Any, out: Tensor) -> None:
        self.outputs[self.name] = out


def argument(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], *names: str) -> Any:
    """An argument of a call by one of its names, however it was passed; None without it."""
    for name in names:
        if name in kwargs:
            return kwargs[name]
    given = inspect.signature(module.forward).bind_partial(*args).arguments if args else {}
    return next((given[name] for name in names if name in given), None)


def near(
    x: Float[Tensor, "b t d"], layer: Any, mask: Tensor | None, max_cache: int
) -> Tensor | None:
    """The base's mask [b|1 1 t s], bool or added to scores, for the last `max_cache` only."""
    tokens = x.shape[1]
    seen = 0 if layer is None else layer.get_seq_length()
    keys, start = (tokens, 0) if layer is None else layer.get_mask_sizes(tokens)
    if mask is None and keys <= max_cache and tokens == 1:
        return None
    apart = torch.arange(seen, seen + tokens, device=x.device)[:, None]
    apart = apart - torch.arange(start, start + keys, device=x.device)
    close = ((apart >= 0) & (apart < max_cache))[None, None]
    if mask is None:
        mask = close
    elif mask.dtype is torch.bool:
        mask = mask & close
    else:
        mask = mask.masked_fill(~close, torch.finfo(mask.dtype).min)
    return mask
