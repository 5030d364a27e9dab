"""Estimate the memory of a training step from a step of tensors that have shapes alone.

A copy of the task takes a forward and a backward pass and a step of its optimiser on fake tensors,
and `ops.live_bytes` counts what is alive: activations as autocast and gradient checkpointing keep
them, gradients, temporary tensors. Caches of allocators, kernels' own scratch memory and libraries
(some 0.5 GB for CUDA's context) come on top.

    peak = weights + states + max(activations and gradients, gradients and the update's temporaries)
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from chimera.ops.live_bytes import LiveBytes, stored
from chimera.optim.optimizer import build, groups
from chimera.task.base import Task
from chimera.task.cost import without_numbers

#: One kernel in place, all parameters at once with temporary tensors of their size, or one by one.
Update = Literal["fused", "foreach", "loop"]
HALF = {"fp16": torch.float16, "bf16": torch.bfloat16}


class StepBytes(NamedTuple):
    """Bytes of a training step in one process; their sum is its peak.

    Args:
        weights: of the model.
        gradients: of the trained weights.
        optimiser: its state.
        activations: what the peak has beyond these: activations in the backward pass, or the
            temporary tensors of the update where they are more.
    """

    weights: float
    gradients: float
    optimiser: float
    activations: float


def step_bytes(
    task: Task,
    sequences: int,
    length: int,
    precision: str,
    *,
    kept: bool,
    update: Update,
    passes: int | None = None,
) -> StepBytes | None:
    """Estimate a step of one process; None for a model that needs numbers to run.

    Args:
        task: on any device; it is copied without its numbers.
        sequences: of a micro-batch.
        length: tokens of a sequence.
        precision: fp32, bf16 or fp16.
        kept: the gradients are there when a backward pass begins: of earlier micro-batches, or of
            DDP's buckets.
        update: how the optimiser goes through the parameters.
        passes: `passes_bytes` with the same settings, which takes longest, if it is known.
    """
    if passes is None:
        passes = passes_bytes(task, sequences, length, precision, kept=kept)
    if passes is None:
        return None
    gradients = float(sum(nbytes(p) for p in task.model.parameters() if p.requires_grad))
    state, temporary = optimiser_bytes(task, update)
    peak = max(passes + gradients * kept, gradients + temporary)
    return StepBytes(weight_bytes(task), gradients, state, peak - gradients)


def weight_bytes(task: Task) -> float:
    """Bytes of the weights of a task's model."""
    return float(sum(map(nbytes, task.model.parameters())))


def nbytes(x: Tensor) -> int:
    """Bytes of a tensor; of a quantised one those of its codes and scales."""
    return sum(part.nbytes for part in stored(x))


def passes_bytes(
    task: Task, sequences: int, length: int, precision: str, *, kept: bool
) -> int | None:
    """Peak of what a forward and a backward pass add; None for a model that needs numbers to run.

    Args:
        task, sequences, length, precision, kept: as of `step_bytes`.
    """
    try:
        with FakeTensorMode():
            copy = without_numbers(task, torch.device("cpu")).train()
            batch = task.training_batch(sequences, length, torch.device("cpu"))
            if kept:
                _give_gradients(copy)
            with LiveBytes() as live:
                with autocast_of(precision):
                    out: Any = copy.training_step(batch, 0)
                out["loss"].backward()
    except (RuntimeError, TypeError, AttributeError):
        return None
    return live.peak


def autocast_of(precision: str) -> torch.autocast:
    """Autocast of a step on the CPU, without effect in fp32."""
    return torch.autocast("cpu", HALF.get(precision), enabled=precision in HALF)


def optimiser_bytes(task: Task, update: Update = "loop") -> tuple[float, int]:
    """Bytes of the optimiser's state, and the peak of the temporary tensors of a later step."""
    model: nn.Module = without_numbers(task.model, torch.device("meta"))
    _give_gradients(model)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    optimizer, _ = build(task.optim, groups(model, task.optim), 10, fused=False)
    for group in optimizer.param_groups:
        if update == "foreach" and "foreach" in group:
            group["foreach"] = True
    try:
        with torch.compiler.set_stance("force_eager"):
            optimizer.step()
            with LiveBytes() as live:
                optimizer.step()
    except (RuntimeError, TypeError, NotImplementedError):  # it needs numbers: as of AdamW
        return 8.0 * trained, 0
    values = [value for state in optimizer.state.values() for value in state.values()]
    kept = [x for x in values if isinstance(x, Tensor) and x.ndim]  # a count of steps has none
    in_place = update == "fused" and "fused" in optimizer.defaults
    return float(sum(map(nbytes, kept))), 0 if in_place else live.peak


def _give_gradients(model: nn.Module) -> None:
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.empty_like(parameter)
