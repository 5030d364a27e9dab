"""Where accumulation has a precision of its own, whatever autocast says around it."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def as_given(x: Tensor) -> AbstractContextManager[object]:
    """Autocast off on x's device; on the meta device, which has no autocast, nothing."""
    if x.is_meta:
        return nullcontext()
    return torch.autocast(x.device.type, enabled=False)
