"""Fewer, larger kernels, where to start one takes longer than to compute its numbers.

On a GPU and in a graph that is compiled, linear layers with the same input are one product of their
weights, one below the other; each row is computed as before. A layer takes part if it has `alike`
and `joined`. In evaluation layers stay apart: there, laying weights together would be most of the
work of a token.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

#: Devices on which few large kernels are faster than many small ones.
DEVICES = ("cuda",)
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def few_kernels(x: Tensor) -> bool:
    """Whether what is computed from x should be few kernels."""
    return x.device.type in DEVICES or torch.compiler.is_compiling()


def hooked(*modules: Any) -> bool:
    """Whether a module has hooks, for which it has to be called."""
    return any(getattr(module, kind) for module in modules for kind in HOOKS)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`F.linear`; several weights [n o i] each have their own rows of x [n c i]."""
    if weight.ndim == 2:
        return F.linear(x, weight, bias)
    return x @ weight.mT if bias is None else torch.baddbmm(bias[:, None], x, weight.mT)


def together(x: Tensor, *layers: Any) -> tuple[Tensor, ...]:
    """`tuple(layer(x) for layer in layers)`, neighbours that are alike by one product.

    Layers in a tuple give one tensor, their outputs side by side.
    """
    groups = [layer if isinstance(layer, tuple) else (layer,) for layer in layers]
    if not (few_kernels(x) and torch.is_grad_enabled()):
        return tuple(_side_by_side(x, group) for group in groups)
    found: list[Tensor] = []
    while groups:
        alike = getattr(groups[0][0], "alike", None)
        count = 0
        while alike is not None and count < len(groups) and all(map(alike, groups[count])):
            count += 1
        if sum(map(len, groups[:count])) > 1:
            found += groups[0][0].joined(x, groups[:count])
        else:
            count = 1
            found.append(_side_by_side(x, groups[0]))
        groups = groups[count:]
    return tuple(found)


def _side_by_side(x: Tensor, layers: tuple[Any, ...]) -> Tensor:
    return layers[0](x) if len(layers) == 1 else torch.cat([layer(x) for layer in layers], -1)
