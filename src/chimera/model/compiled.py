"""torch.compile block by block: equal blocks share one graph, where a whole model is one long one.

The graph of a block is traced once and serves every block of the same structure and settings;
embedding, head and loss run as they are. Layers that read their own index (a decay or a factor that
varies with depth) have a graph each.

On a GPU `trainer.compile=auto` compiles the whole model with its loss (`Task.outputs`) as one
graph, which takes longer to compile and less to run. The first graph has fixed sizes; for other
ones, such as a last batch, torch makes one more, of any size. `graphs` does the same, and starts
each of its forward and backward passes as one CUDA graph (Inductor's own): the host, which starts
kernels one by one otherwise, takes hundreds of microseconds for them all.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import nn

from chimera.model.backbone import Block

#: Graphs of one block: training and evaluation, each with a fixed and with a varying size.
MODES = 4
#: Devices on which `auto` compiles; on others it is `false`.
AUTOMATIC = ("cuda",)
#: Inductor's settings there: small kernels that do not depend on each other start as one.
FUSION: dict[str, object] = {"combo_kernels": True}
#: Those of `graphs`; the graph for other sizes starts its kernels one by one.
GRAPHS = FUSION | {"triton.cudagraphs": True, "triton.cudagraph_skip_dynamic_graphs": True}


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
        settings = GRAPHS if setting == "graphs" else FUSION
        task.outputs = torch.compile(task.outputs, **{"options": settings, **options})


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
