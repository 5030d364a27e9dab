"""torch.compile block by block: equal blocks share one graph, where a whole model is one long one.

The graph of a block is traced once and serves every block of the same structure and settings;
embedding, head and loss run as they are. Layers that read their own index (a decay or a factor that
varies with depth) have a graph each.

On a GPU `trainer.compile=auto` compiles the trunk (embedding, all blocks, last norm) as one graph
of fixed sizes, which takes longer to compile and less to run. Head and loss stay outside: the
number of masked positions differs between batches.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn

from chimera.model.backbone import Block, Trunk

#: Graphs of one block: training and evaluation, each with a fixed and with a varying size.
MODES = 4
#: Devices on which `auto` compiles; on others it is `false`.
AUTOMATIC = ("cuda",)
#: Inductor's settings there: small kernels that do not depend on each other start as one.
FUSION: dict[str, object] = {"combo_kernels": True}


def compile_as(
    setting: bool | Literal["auto"], model: nn.Module, device: torch.device, **options: object
) -> None:
    """Compile in place as `trainer.compile` says.

    A trunk that recomputes its blocks in the backward pass is compiled by blocks: inside a graph,
    torch recomputes no block that keeps statistics.

    Args:
        setting: of the run.
        model: to be trained.
        device: on which it is.
        options: of torch.compile, in place of our own.
    """
    if setting == "auto" and device.type not in AUTOMATIC:
        return
    trunks = [part for part in model.modules() if isinstance(part, Trunk)]
    if setting == "auto" and trunks and not any(t.gradient_checkpointing for t in trunks):
        for trunk in trunks:
            trunk.compile(**{"dynamic": False, "options": FUSION, **options})
    elif setting:
        compile_model(model, **options)


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
