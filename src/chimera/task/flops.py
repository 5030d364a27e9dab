"""FLOPs of a task's model per token, counted on a copy without numbers (`ops.flops`)."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from chimera.ops.flops import Count
from chimera.task.base import Task


class Flops(NamedTuple):
    """FLOPs per token of a sequence without padding.

    Args:
        length: tokens of the sequence.
        forward: of matrix products in a forward pass.
        training: of matrix products in a forward and a backward pass, without recomputation.
        elementwise: numbers that all other operations of both passes write.
        by_component: `forward` by component.
        at_most: why a pass may take fewer; empty if it takes these.
    """

    length: int
    forward: float
    training: float
    elementwise: float
    by_component: dict[str, float]
    at_most: tuple[str, ...] = ()


def count(task: Task, length: int) -> Flops | None:
    """Count a training step of one sequence; None for a model that needs numbers to run.

    The task's own predictions count: of masked language modelling the masked positions only. A
    mixture of experts counts the experts that an even router chooses. A teacher, the optimiser, and
    what an adapter does between steps are left out.

    Args:
        task: its model is copied without its numbers, on the CPU or a GPU, before it is sharded.
        length: tokens of the sequence.
    """
    model = on_meta(task.model).train()
    for module in model.modules():
        if getattr(module, "gradient_checkpointing", None) is True:
            module.gradient_checkpointing = False  # type: ignore[assignment]
    counter = Count()
    try:
        with labelled(model, counter), counter:
            out = model(**task.example(length, torch.device("meta")))
            forward = counter.products
            logits = out.logits if isinstance(out.logits, Tensor) else out[0]
            (logits.float().sum() + sum(out.aux.values())).backward()
    except (RuntimeError, TypeError, AttributeError):
        return None
    by_component = {name: n / length for name, n in counter.by_label.items() if name}
    return Flops(
        length,
        forward / length,
        counter.products / length,
        counter.elementwise / length,
        by_component,
        tuple(sorted({getattr(m, "flops_at_most", "") for m in model.modules()} - {""})),
    )


def on_meta(model: nn.Module) -> nn.Module:
    """Copy of a model whose tensors have shapes but no numbers."""
    memo: dict[int, Any] = {}
    for module in model.modules():
        for tensors in (module._parameters, module._buffers, vars(module)):
            for tensor in tensors.values():
                if isinstance(tensor, Tensor) and id(tensor) not in memo:
                    bare = torch.empty_like(tensor, device="meta", requires_grad=False)
                    if isinstance(tensor, nn.Parameter):
                        bare = nn.Parameter(bare, requires_grad=tensor.requires_grad)
                    memo[id(tensor)] = bare
    return copy.deepcopy(model, memo)


@contextmanager
def labelled(model: nn.Module, counter: Count) -> Iterator[None]:
    """Label what a forward pass computes by the innermost module with a `component`."""
    above: list[str] = []

    def enter(module: nn.Module, *_: Any) -> None:
        above.append(counter.label)
        counter.label = str(module.component)

    def leave(*_: Any) -> None:
        counter.label = above.pop()

    hooks = []
    for module in model.modules():
        if hasattr(type(module), "component"):
            hooks += [module.register_forward_pre_hook(enter), module.register_forward_hook(leave)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
