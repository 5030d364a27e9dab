"""Loss-free balancing of experts: their bias moves after each optimiser step (arXiv 2408.15664).

The ffn's YAML names this callback, which finds layers by the method `rebalance`, not by class. A
step that is left out moves nothing, and its loads are forgotten with the other buffers.
"""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl

from chimera.callback.part.update import OnUpdate


class LoadBalance(OnUpdate):
    """Has every mixture of experts move its bias."""

    method = "rebalance"

    def on_update(self, trainer: pl.Trainer, pl_module: Any, outputs: Any, batch: Any) -> None:
        for layer in self.modules:
            layer.rebalance()
