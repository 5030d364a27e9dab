"""Weight codes kept between optimiser steps, and the setting `quant.compute` (SPEC Q2-Q5).

Codes are made again when the weight has another version, place, dtype or device, after a step of
any torch optimiser, and after a load. The count of steps is needed beside the version, because
optimisers with kernels of their own (8-bit Adam) write past it. Only code that writes to
`weight.data` outside of an optimiser is not seen. Under FSDP2 the shards are looked at: a weight
that is gathered again is another tensor with the same numbers, or the same with others.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook

from chimera.errors import UserError
from chimera.ops.integer import Arithmetic, Codes
from chimera.ops.shards import local

#: Values of `quant.compute`.
Compute = Literal["simulate", "int8", "bf16"]

PER_CHANNEL = (
    "quant.activations=per_channel scales the axis that is summed over; use"
    " quant.activations=per_token, or quant.compute=simulate"
)


class _Steps:
    """Number of steps that optimisers of this process have taken."""

    taken = 0

    @classmethod
    def count(cls, *_: Any) -> None:
        cls.taken += 1


register_optimizer_step_post_hook(_Steps.count)


class CodeCache:
    """Codes of one layer's weight. No part of the layer's state; a copy of a layer starts empty."""

    def __init__(self) -> None:
        self._shards: tuple[Tensor, ...] = ()
        self.clear()

    def follow(self, *shards: Tensor) -> None:
        """Make codes anew when these change, in place of what is gathered from them.

        Args:
            shards: of the weight and of what else the codes depend on, as their owners hold them
                between steps.
        """
        self._shards = shards
        self.clear()

    def clear(self) -> None:
        """Forget the codes."""
        self._key: tuple[Any, ...] = ()
        self._weight: Callable[[], Tensor | None] = lambda: None
        self._codes: Codes | None = None

    def get(self, weight: Tensor, make: Callable[[], Codes], *also: Tensor) -> Codes:
        """The codes of a weight as it is now.

        Args:
            weight: of the forward pass, whole.
            make: computes them.
            also: other tensors that the codes depend on.
        """
        if torch.compiler.is_compiling() or any(t.is_inference() for t in (weight, *also)):
            return make()
        key: tuple[Any, ...]
        if self._shards:  # a gathered weight may be another tensor each time
            versions = [t._version for t in (*self._shards, *local(self._shards))]
            key = (_Steps.taken, *versions)
            known = True
        else:
            places = [(t._version, t.data_ptr(), t.dtype, t.device) for t in (weight, *also)]
            key = (_Steps.taken, *places)
            known = self._weight() is weight
        if self._codes is None or key != self._key or not known:
            # Codes of a validation serve training too, which cannot keep tensors of inference mode.
            with torch.inference_mode(False), torch.no_grad():
                self._codes = make()
            self._key = key
            self._weight = weakref.ref(weight)
        return self._codes

    def __deepcopy__(self, memo: Any) -> CodeCache:
        return CodeCache()

    def __reduce__(self) -> tuple[type[CodeCache], tuple[()]]:
        return CodeCache, ()


def arithmetic(compute: Compute, obstacle: str = "") -> Arithmetic:
    """The setting `quant.compute`, checked: how layers multiply codes.

    Args:
        compute: the setting.
        obstacle: why the quantiser's products are no products of integers; empty if they are.

    Raises:
        UserError: there is an obstacle to the chosen arithmetic.
    """
    if compute != "simulate" and obstacle:
        raise UserError(f"quant.compute={compute} multiplies integers, but {obstacle}")
    return compute
