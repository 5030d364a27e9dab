"""The memory of LiZAttention inside a Hugging Face key-value cache (SPEC A4; TPTT 3.5.1).

`generate` makes the cache and hands it around; each layer of it gets the linear branch's state as
well, which then follows beam search, repetition and resets by itself. The state does not grow: a
k × k matrix a head and the last few keys and values. With `max_cache` the layer's keys and values
do not grow either.

A layer keeps its class, whichever it is, under a class of ours: nothing of transformers is
imported or replaced.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from chimera.ops.liza import LinearState


class Remembers:
    """Put in front of a cache layer's class: the linear state goes where the keys go."""

    _layer_type = None  # or transformers would take us for the layer to use from now on
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
        """The memory has no way back.

        Raises:
            ValueError: something is to be taken out, as in assisted generation.
        """
        if tokens_to_remove:
            raise ValueError("LiZAttention's memory cannot be cropped; generate without assistant")

    def _rows(self, change: Any) -> None:
        if self.linear is not None:
            self.linear = LinearState(*map(change, self.linear))


class Bounded(Remembers):
    """Besides, keys and values of the last tokens only.

    Not transformers' own sliding layer: with a window of one it would keep everything.
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
        # Copies, or the cache would keep the whole prompt alive.
        self.keys, self.values = keys[..., start:, :].clone(), values[..., start:, :].clone()
        return keys, values

    def get_seq_length(self) -> int:
        return self.cumulative_length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        kept = min(self.cumulative_length, self.max_cache - 1)
        return kept + query_length, self.cumulative_length - kept

    def get_max_length(self) -> int:
        return self.max_cache


def remembering(past: Any, index: int, max_cache: int | None) -> Remembers:
    """The layer `index` of a cache as one of ours, which takes its place the first time."""
    while len(past.layers) <= index:  # made as they come
        past.layers.append(past.layer_class_to_replicate())
    layer = past.layers[index]
    if isinstance(layer, Remembers):
        return layer
    base: Any = type(layer)
    kind = _ours(base, bounded=max_cache is not None)
    ours = kind.__new__(kind)
    ours.__dict__.update(layer.__dict__)
    if max_cache is not None:
        ours.max_cache = min(max_cache, getattr(layer, "sliding_window", max_cache))
        ours.cumulative_length = layer.get_seq_length()
    past.layers[index] = ours
    return ours


@cache
def _ours(kind: type, *, bounded: bool) -> Any:
    front = Bounded if bounded else Remembers
    return type(f"{front.__name__}{kind.__name__}", (front, kind), {"_layer_type": None})
