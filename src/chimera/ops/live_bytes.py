"""Count the bytes of the tensors that are alive, and their peak.

Tensors with numbers, on the meta device and fake ones count alike: each storage from the operation
that makes it to the moment when nothing refers to it. What a kernel takes and frees inside does not
count, nor do caches of allocators.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass

#: A fake tensor is asked for its device far more often than for anything else.
_DEVICE = torch.ops.prim.device.default


class LiveBytes(TorchDispatchMode):
    """Counts tensors that are made while it is entered.

    Attributes:
        now: bytes of those that are alive.
        peak: largest `now`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._alive: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _DEVICE and hasattr(args[0], "fake_device"):
            return args[0].fake_device
        out = func(*args, **(kwargs or {}))
        if any(returned.alias_info is not None for returned in func._schema.returns):
            return out  # a view of an argument, or an argument with other numbers
        for x in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(x, Tensor):
                self._add(x)
        return out

    def _add(self, x: Tensor) -> None:
        for part in stored(x):
            storage = part.untyped_storage()
            key = storage._cdata
            if key in self._alive:
                continue
            size = storage.nbytes()

            def gone(_: Any, key: int = key, size: int = size) -> None:
                self._alive.pop(key, None)
                self.now -= size

            self._alive[key] = weakref.ref(storage, gone)
            self.now += size
            self.peak = max(self.peak, self.now)


def allocated_bytes(function: Callable[[], object]) -> int:
    """Peak of what a function takes from torch's allocator on the CPU, kernels' scratch included.

    Args:
        function: what it frees of earlier tensors does not count.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        function()
    events = profiler.profiler.kineto_results.events()
    taken = [(e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]"]
    now = peak = 0
    for _, size in sorted(taken, key=itemgetter(0)):
        now += size
        peak = max(peak, now)
    return peak


def stored(x: Tensor) -> Iterator[Tensor]:
    """The tensors that hold the numbers of x: itself, or codes and scales of a quantised one."""
    if is_traceable_wrapper_subclass(x):
        for name in x.__tensor_flatten__()[0]:
            yield from stored(getattr(x, name))
    else:
        yield x
