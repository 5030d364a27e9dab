"""Weights of 4 bits, as bitsandbytes holds them: codes, and a `quant_state` with their scales."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from chimera.errors import UserError


def entries(weight: Tensor) -> int:
    """Number of weights of a parameter, of which one of 4 bits holds two in a byte."""
    state: Any = getattr(weight, "quant_state", None)
    return weight.numel() if state is None else state.shape.numel()


def dense(weight: Tensor) -> Tensor:
    """The weights that a layer computes with; those that are not of 4 bits as they are."""
    state: Any = getattr(weight, "quant_state", None)
    if state is None:
        return weight
    if weight.is_meta:
        return torch.empty(state.shape, device="meta")
    from bitsandbytes.functional import dequantize_4bit

    return dequantize_4bit(weight.detach(), state)


def release(parameters: Iterable[nn.Parameter], key: str) -> None:
    """Let parameters be trained, which `key` has chosen.

    Raises:
        UserError: one has 4 bits.
    """
    for parameter in parameters:
        if not parameter.is_floating_point():
            raise UserError(f"{key} chooses weights of 4 bits, which cannot be trained")
        parameter.requires_grad_(True)
