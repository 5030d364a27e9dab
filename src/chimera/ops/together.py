"""Fewer, larger kernels, where to start one takes longer than to compute its numbers.

On a GPU and in a graph that is compiled, linear layers with the same input are one product of their
weights, one below the other; each row is computed as before. A layer takes part if it has `alike`
and `joined`. In evaluation layers stay apart: there, laying weights together would be most of the
work of a token.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

#: Devices on which few large kernels are faster than many small ones.
DEVICES = ("cuda",)


def few_kernels(x: Tensor) -> bool:
    """Whether what is computed from x should be few kernels."""
    return x.device.type in DEVICES or torch.compiler.is_compiling()


def together(x: Tensor, *layers: Any) -> tuple[Tensor, ...]:
    """`tuple(layer(x) for layer in layers)`, neighbours that are alike by one product."""
    if not (few_kernels(x) and torch.is_grad_enabled()):
        return tuple(layer(x) for layer in layers)
    found: list[Tensor] = []
    while layers:
        alike = getattr(layers[0], "alike", None)
        count = 1
        while alike is not None and count < len(layers) and alike(layers[count]):
            count += 1
        found += layers[0].joined(x, layers[:count]) if count > 1 else [layers[0](x)]
        layers = layers[count:]
    return tuple(found)
