"""Decoding state of a Chimera model as a cache of the transformers library."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map
from transformers.cache_utils import Cache

from chimera.model.backbone import State


class ChimeraCache(Cache):
    """The states of all layers: key-value caches, matrices of linear attention, and the like.

    `state` is None until the first pass, which makes it. A pass puts a new state in its place.
    """

    def __init__(self, state: State | None = None) -> None:
        super().__init__(layers=[])
        self.state = state

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens so far, with padding."""
        return 0 if self.state is None else self.state.length

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Take the sequences of these numbers."""
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Take the sequences of these numbers."""
        self._rows(lambda x: x.index_select(0, indices.to(x.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each sequence."""
        self._rows(lambda x: x.repeat_interleave(repeats, 0))

    def reset(self) -> None:
        """Forget all tokens."""
        self.state = None

    def crop(self, *args: Any, **kwargs: Any) -> None:
        """Refuse: a recurrent state cannot forget its last tokens.

        Raises:
            ValueError: always.
        """
        raise ValueError("the state of this model cannot go back to fewer tokens")

    def activate_past_recording(self) -> None:
        """Refuse, as `crop`: assisted generation takes back tokens.

        Raises:
            ValueError: always.
        """
        self.crop()

    @property
    def is_initialized(self) -> bool:
        """Whether there was a pass."""
        return self.state is not None

    @property
    def is_compileable(self) -> bool:
        """Never: the state may grow."""
        return False

    def _rows(self, change: Any) -> None:
        if self.state is not None:
            # A part that a mixer does without is a tensor of no sequences.
            slots = tree_map(
                lambda x: change(x) if torch.is_tensor(x) and len(x) else x, self.state.slots
            )
            self.state = self.state._replace(seen=change(self.state.seen), slots=slots)
