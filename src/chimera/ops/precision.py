"""Switch autocast off for code that chooses its own precision."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def autocast_off(x: Tensor) -> AbstractContextManager[object]:
    """Context without autocast on x's device; does nothing on the meta device (no autocast)."""
    if x.is_meta:
        return nullcontext()
    return torch.autocast(x.device.type, enabled=False)
