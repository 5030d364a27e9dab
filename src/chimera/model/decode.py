"""Decode token by token with the state of the model.

One pass over the left-padded prompts gives the state; each further token is one pass over one
position. The cost of a token is constant for recurrent mixers; for attention it grows only by
reading the cache. On a GPU the host starts kernels more slowly than they run: if the state keeps
its shapes, as that of most recurrent mixers, and no part waits for the device, all passes but the
first ones replay one CUDA graph.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from chimera.errors import UserError
from chimera.model.backbone import State

#: Devices that have graphs, and the number of passes from which to record one is worth its time.
DEVICES = ("cuda",)
WORTH = 16

log = logging.getLogger(__name__)
_REFUSED: weakref.WeakSet[Any] = weakref.WeakSet()


def pad_left(rows: Sequence[Sequence[int]], pad_id: int) -> tuple[Tensor, Tensor | None]:
    """Pad rows on the left to ids [b t], and the mask [b t]; the mask is None without padding."""
    width = max(map(len, rows))
    ids = torch.tensor([[pad_id] * (width - len(row)) + list(row) for row in rows])
    if min(map(len, rows)) == width:
        return ids, None
    starts = torch.tensor([width - len(row) for row in rows])
    return ids, torch.arange(width) >= starts[:, None]


@torch.no_grad()
def decode(
    model: Any,
    prompts: Sequence[Sequence[int]],
    choose: Callable[[Tensor], Tensor],
    *,
    max_new: int,
    pad_id: int,
    end_id: int | None,
) -> Iterator[Int[Tensor, " b"]]:
    """Yield the next token of every sequence until all sequences have ended.

    Args:
        model: causal model in evaluation mode with enough positions (see `check_length`).
        prompts: token ids, at least one per prompt.
        choose: function of logits [b v] to ids [b].
        max_new: maximal number of tokens of a continuation.
        pad_id: id for padding of prompts.
        end_id: id that ends a sequence; repeated until all sequences have ended.
    """
    device = next(model.parameters()).device
    ids, mask = pad_left(prompts, pad_id)
    ended = torch.zeros(len(prompts), dtype=torch.bool, device=device)
    last = torch.arange(1, len(prompts) + 1, device=device) * ids.shape[1] - 1
    steps = Steps(model, ids.shape[1], max_new - 1)
    out = model(
        ids.to(device),
        None if mask is None else mask.to(device),
        index=last,
        state=model.init_state(len(prompts)),
    )
    logits = out.logits
    state = out.state
    for step in range(max_new):
        token = choose(logits.flatten(0, -2))
        if end_id is not None:
            token = token.masked_fill(ended, end_id)
            ended |= token == end_id
        yield token
        if bool(ended.all()) or step + 1 == max_new:
            return
        logits, state = steps(token[:, None], state)


class Steps:
    """Passes over one position each, one after the other.

    Args:
        model: causal model in evaluation mode.
        seen: positions of the prompts, with padding.
        count: passes at most.
    """

    def __init__(self, model: Any, seen: int, count: int) -> None:
        self.model = model
        self.positions = seen + count
        self.left = count
        self.device = next(model.parameters()).device
        self._replay: Callable[[], Any] | None = None
        # The state after the prompts may be laid out in another way than those of single passes.
        self._tries = 2 if self.device.type in DEVICES and model not in _REFUSED else 0

    def __call__(self, token: Int[Tensor, "b 1"], state: Any) -> tuple[Float[Tensor, "*b v"], Any]:
        """Logits of the next token, which the next call may overwrite, and the state after it."""
        self.left -= 1
        if self._replay is not None:
            self.token.copy_(token)
            self._replay()  # the state is where the last call has left it
            return self.logits, self.state
        out = self.model(token, state=state)
        if self._tries and self.left >= WORTH:
            self._tries -= 1
            if _alike(state, out.state):
                self._tries = 0
                self._record(token, out.state)
        return out.logits, out.state

    def advance(self) -> None:
        """One pass that writes the new state over the old one."""
        out = self.model(self.token, state=self.state)
        self.logits = out.logits
        old = _tensors(self.state)
        held = {x.untyped_storage().data_ptr() for x in old}
        # A part of the new state may lie in the old one, which the copies below overwrite.
        new = [x.clone() if x.untyped_storage().data_ptr() in held else x
               for x in _tensors(out.state)]  # fmt: skip
        for kept, made in zip(old, new, strict=True):
            kept.copy_(made)

    def _record(self, token: Tensor, state: Any) -> None:
        leaves, shape = tree_flatten(state)
        own = [leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self.token = token.clone()
        self.state = tree_unflatten(own, shape)
        cached = torch.is_autocast_cache_enabled()
        torch.set_autocast_cache_enabled(False)  # who leaves autocast frees what it casts
        try:
            self.model.backbone.check_positions(self.positions)  # which a graph does not
            self._replay = recorded(self.advance, self.device)
        except (UserError, RuntimeError) as error:  # a part that waits for the device …
            _REFUSED.add(self.model)
            log.info("decoding without a CUDA graph: %s", str(error).partition("\n")[0])
        finally:
            torch.set_autocast_cache_enabled(cached)
        for kept, leaf in zip(own, leaves, strict=True):
            if isinstance(kept, Tensor):
                kept.copy_(leaf)


def recorded(run: Callable[[], None], device: torch.device) -> Callable[[], Any]:
    """A function that starts on the GPU what `run` starts there, without its Python.

    Raises:
        RuntimeError: `run` waits for the device, which a graph cannot.
    """
    with torch.cuda.device(device):
        waits = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("error")
        try:  # first without recording: an error in a recording leaves torch's allocator in it
            run()
        finally:
            torch.cuda.set_sync_debug_mode(waits)
        before = torch.cuda.current_stream()
        graph = torch.cuda.CUDAGraph()
        apart = torch.cuda.Stream()
        try:
            with torch.cuda.graph(graph, stream=apart, capture_error_mode="thread_local"):
                run()
        finally:
            torch.cuda.set_stream(before)
    return graph.replay


def _tensors(state: Any) -> list[Tensor]:
    return [leaf for leaf in tree_flatten(state)[0] if isinstance(leaf, Tensor)]


def _alike(before: Any, after: Any) -> bool:
    """Whether states differ in numbers of their tensors alone, and in the length known here."""
    if not isinstance(before, State):
        return False
    (old, shape), (new, other) = (tree_flatten(x._replace(length=0)) for x in (before, after))
    return shape == other and all(map(_same, old, new))


def _same(x: object, y: object) -> bool:
    if isinstance(x, Tensor) and isinstance(y, Tensor):
        return (x.shape, x.stride(), x.dtype) == (y.shape, y.stride(), y.dtype)
    return (x is None or isinstance(x, int)) and x == y


def greedy(
    model: Any, prompts: Sequence[Sequence[int]], *, max_new: int, pad_id: int, end_id: int | None
) -> list[list[int]]:
    """Most likely continuation of each prompt, up to the end token; arguments as of `decode`."""
    tokens = decode(
        model,
        prompts,
        lambda logits: logits.argmax(-1),
        max_new=max_new,
        pad_id=pad_id,
        end_id=end_id,
    )
    rows = torch.stack(list(tokens), 1).tolist()
    return [row[: row.index(end_id)] if end_id in row else row for row in rows]
