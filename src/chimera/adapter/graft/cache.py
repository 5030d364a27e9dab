"""Store the memory of LiZAttention in a Hugging Face key-value cache (SPEC A4; TPTT 3.5.1).

`generate` creates the cache. Each cache layer also stores the state of the linear branch, so that
beam search, repetition and resets change both. The state has constant size: a k × k matrix per head
and the last few keys and values. With `max_cache`, the keys and values of the layer have constant
size too.

The class of a cache layer is replaced by a subclass of it, created at run time. The module imports
and replaces nothing of transformers.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from chimera.ops.liza import LinearState


class StatefulLayer:
    """Mixin for classes of cache layers: operations on keys also change the linear state."""

    _layer_type = None  # otherwise transformers registers this class as its default layer
    is_croppable = False
    linear: LinearState | None = None

    def reorder_cache(self, beam_idx: Tensor) -> None:
        super().reorder_cache(beam_idx)  # type: ignore[misc]
        self._rows(lambda x: x.index_select(0, beam_idx.to(x.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        super().batch_repeat_interleave(repeats)  # type: ignore[misc]
        self._rows(lambda x: x.repeat_interleave(repeats, 0))

    def batch_select_indices(self, indices: Tensor) -> None:
        super().batch_select_indices(indices)  # type: ignore[misc]
        self._rows(lambda x: x[indices])

    def reset(self) -> None:
        super().reset()  # type: ignore[misc]
        self.linear = None

    def crop(self, tokens_to_remove: int) -> None:
        """Reject cropping, because the memory cannot forget single tokens.

        Raises:
            ValueError: tokens_to_remove > 0, as in assisted generation.
        """
        if tokens_to_remove:
            raise ValueError("LiZAttention's memory cannot be cropped; generate without assistant")

    def _rows(self, change: Any) -> None:
        if self.linear is not None:
            self.linear = LinearState(*map(change, self.linear))


class BoundedLayer(StatefulLayer):
    """Mixin that also limits keys and values to the last `max_cache` − 1 tokens.

    transformers' sliding layer does not serve: with a window of one it keeps all tokens.
    """

    max_cache: int
    cumulative_length: int
    keys: Tensor
    values: Tensor
    is_initialized: bool

    def update(self, keys: Tensor, values: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(keys, values)  # type: ignore[attr-defined]
        self.cumulative_length += keys.shape[-2]
        if self.keys.numel():
            keys = torch.cat([self.keys, keys], -2)
            values = torch.cat([self.values, values], -2)
        start = max(0, keys.shape[-2] - self.max_cache + 1)
        # Copies, because views would keep the whole prompt in memory.
        self.keys = keys[..., start:, :].clone()
        self.values = values[..., start:, :].clone()
        return keys, values

    def get_seq_length(self) -> int:
        return self.cumulative_length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        kept = min(self.cumulative_length, self.max_cache - 1)
        return kept + query_length, self.cumulative_length - kept

    def get_max_length(self) -> int:
        return self.max_cache


def stateful_layer(past: Any, index: int, max_cache: int | None) -> StatefulLayer:
    """Layer `index` of a cache as `StatefulLayer`; the first call replaces the layer."""
    while len(past.layers) <= index:  # transformers creates layers on demand too
        past.layers.append(past.layer_class_to_replicate())
    layer = past.layers[index]
    if isinstance(layer, StatefulLayer):
        return layer
    base: Any = type(layer)
    layer_class = _subclass(base, bounded=max_cache is not None)
    replacement = layer_class.__new__(layer_class)
    replacement.__dict__.update(layer.__dict__)
    if max_cache is not None:
        replacement.max_cache = min(max_cache, getattr(layer, "sliding_window", max_cache))
        replacement.cumulative_length = layer.get_seq_length()
    past.layers[index] = replacement
    return replacement


@cache
def _subclass(base: type, *, bounded: bool) -> Any:
    mixin = BoundedLayer if bounded else StatefulLayer
    return type(f"{mixin.__name__}{base.__name__}", (mixin, base), {"_layer_type": None})
