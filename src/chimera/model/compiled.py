"""torch.compile block by block: equal blocks share one graph, where a whole model is one long one.

The graph of a block is traced once and serves every block of the same structure and settings;
embedding, head and loss run as they are. Layers that read their own index (a decay or a factor that
varies with depth) have a graph each.

On a GPU `trainer.compile=auto` compiles the whole model with its loss (`Task.outputs`) as one
graph, which takes longer to compile and less to run. It has the sizes of the first batch; other
ones, such as those of a last batch, have graphs of their own. `graphs` does the same, and starts
forward and backward of the first sizes as one CUDA graph each (Inductor's own): otherwise the host
starts their kernels one by one. Each pass of a CUDA graph writes its results where the one before
wrote its own: `Task` copies the numbers of a step, and Lightning drops gradients before another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from chimera.model.backbone import Block

#: Graphs of one block: training and evaluation, each with a fixed and with a varying size.
MODES = 4
#: Devices on which `auto` compiles; on others it is `false`.
AUTOMATIC = ("cuda",)


def fusion() -> dict[str, object]:
    """Inductor's settings on a GPU: our passes over the graph, and small kernels that start as one.

    Kernels start as one if none needs what another makes.
    """
    from chimera.model.graph_pass import PASSES  # imports Inductor, which takes a second

    most = {"combo_kernel_max_num_nodes": 32}  # torch before 2.12 has no such setting
    known = torch._inductor.list_options()
    return {"combo_kernels": True, **PASSES, **{k: v for k, v in most.items() if k in known}}


def compile_as(
    setting: bool | Literal["auto", "graphs"], task: Any, device: torch.device, **options: Any
) -> None:
    """Compile in place as `trainer.compile` says; `task.compiled` says whether.

    A model that recomputes its blocks in the backward pass is compiled by blocks: inside a graph,
    torch recomputes no block that keeps statistics. So is one whose hidden states a teacher reads
    by hooks: a graph does not see those of another step.

    Args:
        setting: of the run.
        task: whose model is trained.
        device: on which it is.
        options: of torch.compile, in place of our own.
    """
    task.compiled = setting is True or (bool(setting) and device.type in AUTOMATIC)
    parts = task.model.modules()
    by_blocks = any(getattr(part, "gradient_checkpointing", False) for part in parts)
    if task.compiled and (setting is True or by_blocks or getattr(task, "teacher_dir", None)):
        compile_model(task.model, **options)
    elif task.compiled:
        task.graphs = setting == "graphs"
        first = fusion() | ({"triton.cudagraphs": True} if task.graphs else {})
        fixed = {"options": first, "dynamic": False, **options}
        task.outputs = _by_size(task.outputs, fixed, {"options": fusion(), **options})


def _by_size(
    outputs: Callable[..., Any], first: dict[str, Any], other: dict[str, Any]
) -> Callable[..., Any]:
    """Compile for the sizes of the first batch, in training and in evaluation, and for others.

    A single compiled function changes to a graph of any size with the first batch that differs.

    Args:
        outputs: of a task, from a batch.
        first, other: arguments of torch.compile.
    """

    def of_any_size(batch: dict[str, Any], **more: Any) -> Any:
        return outputs(batch, **more)

    fixed, free = torch.compile(outputs, **first), torch.compile(of_any_size, **other)
    known: dict[bool, dict[str, Any]] = {}

    def compiled(batch: dict[str, Any], **more: Any) -> Any:
        sizes = {key: x.shape for key, x in batch.items() if isinstance(x, Tensor)}
        same = sizes == known.setdefault(torch.is_grad_enabled(), sizes)
        return (fixed if same else free)(batch, **more)

    return compiled


def compile_model(model: nn.Module, **options: object) -> None:
    """Compile in place, so that checkpoints keep their names.

    Args:
        model: its blocks are compiled; a model without any (of Hugging Face) as a whole.
        options: of torch.compile.
    """
    blocks: list[nn.Module] = [part for part in model.modules() if isinstance(part, Block)]
    for part in blocks or [model]:
        part.compile(**options)
    # All blocks share the code of `Block.forward`, for which torch counts its graphs. Above the
    # limit it warns, and runs the others uncompiled.
    limits = torch._dynamo.config
    limits.recompile_limit = max(limits.recompile_limit, MODES * len(blocks))
