"""Measure what a model costs: FLOPs per token; speed, latency and peak memory at one length.

FLOPs are counted on a copy without numbers (`ops.flops`).

Speed and memory (SAIDL Table 16): batch 1, five steps. The latency is that of a forward pass, the
throughput that of a whole training step (1260 ms and 4096/803 s at 4096 tokens). Memory on a GPU is
the allocator's allocated and reserved memory, in 10⁶ bytes as the paper's. On a CPU it is that of
the tensors: weights, the optimiser's state, and the peak of a step (`ops.live_bytes`).
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from chimera.ops.flops import Count
from chimera.ops.live_bytes import LiveBytes
from chimera.task.base import Task

STEPS = 5

Copied = TypeVar("Copied", bound=nn.Module)


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
    model = without_numbers(task.model, torch.device("meta")).train()
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


def without_numbers(model: Copied, device: torch.device) -> Copied:
    """Copy of a model whose tensors have shapes but no numbers.

    Args:
        model: on any device.
        device: meta; under torch's `FakeTensorMode` any other.
    """
    memo: dict[int, Any] = {}
    for module in model.modules():
        own = vars(module)  # parameters and buffers are dicts in it, as defaults of metrics are
        for tensors in (own, *(value for value in own.values() if isinstance(value, dict))):
            for tensor in tensors.values():
                if isinstance(tensor, Tensor) and id(tensor) not in memo:
                    shape, stride = tensor.shape, tensor.stride()
                    bare = torch.empty_strided(shape, stride, dtype=tensor.dtype, device=device)
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


def cost(model: nn.Module, length: int, vocab_size: int, at_once: int) -> dict[str, float]:
    """Measure `tokens_per_second` of training, `latency_ms` of a forward pass, and memory.

    The tokens are random; the learning rate is 0, so the weights do not change.

    Args:
        model: a language model.
        length: tokens of the sequence; the batch is 1.
        vocab_size: V.
        at_once: largest number of logits in memory.
    """
    device = next(model.parameters()).device
    training = model.training
    ids, targets = torch.randint(vocab_size, (2, 1, length), device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, weight_decay=0.0)

    def step() -> None:
        out = model.train()(ids, targets=targets.flatten(), at_once=at_once)
        (out.loss + sum(out.aux.values())).backward()
        optimizer.step()
        optimizer.zero_grad()

    @torch.no_grad()
    def forward() -> None:
        model.eval()(ids, targets=targets.flatten(), at_once=at_once)

    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    step_seconds = _median(step, device)
    memory = _peak(device) if device.type == "cuda" else _tensors(step, optimizer)
    forward_seconds = _median(forward, device)
    model.train(training)
    latency = 1e3 * forward_seconds
    return {"tokens_per_second": length / step_seconds, "latency_ms": latency, **memory}


def _median(function: Callable[[], None], device: torch.device) -> float:
    """Median seconds of `STEPS` calls, after one warm-up call."""
    seconds = []
    for _ in range(STEPS + 1):
        start = time.perf_counter()
        function()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:])


def _peak(device: torch.device) -> dict[str, float]:
    return {
        "allocated_mb": torch.cuda.max_memory_allocated(device) / 1e6,
        "reserved_mb": torch.cuda.max_memory_reserved(device) / 1e6,
    }


def _tensors(step: Callable[[], None], optimizer: torch.optim.Optimizer) -> dict[str, float]:
    """Memory of the tensors of one more step."""
    weights = [p for group in optimizer.param_groups for p in group["params"]]
    states = [x for state in optimizer.state.values() for x in state.values()]
    with LiveBytes() as live:
        step()
    kept = sum(x.nbytes for x in (*weights, *states) if isinstance(x, Tensor))
    return {"allocated_mb": (kept + live.peak) / 1e6}
