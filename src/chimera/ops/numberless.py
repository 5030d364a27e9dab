"""Tensors that have a shape and no numbers: of the meta device, and torch's fake tensors.

Fake tensors say that they are on a device, so that autocast and the choice of kernels are those of
a run; estimates of memory use them (`task.memory`).
"""

from __future__ import annotations

from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor


def numberless(x: Tensor) -> bool:
    """Whether x cannot be read: it is on the meta device, or fake."""
    return x.is_meta or isinstance(x, FakeTensor)
