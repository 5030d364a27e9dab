"""torch.compile block by block: equal blocks share one graph, where a whole model is one long one.

The graph of a block is traced once and serves every block of the same structure and settings;
embedding, head and loss run as they are. Layers that read their own index (a decay or a factor that
varies with depth) have a graph each.
"""

from __future__ import annotations

import torch
from torch import nn

from chimera.model.backbone import Block

#: Graphs of one block: training and evaluation, each with a fixed and with a varying size.
MODES = 4


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
