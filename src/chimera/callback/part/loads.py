"""Loss-free balancing of experts: their bias moves after each optimiser step (arXiv 2408.15664).

The ffn's YAML names this callback, which finds layers by the protocol `Balanced`, not by class. A
step that is left out moves nothing, and its loads are forgotten with the other buffers.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import lightning.pytorch as pl

from chimera.callback.part.update import OnUpdate


@runtime_checkable
class Balanced(Protocol):
    """A mixture of experts that balances their loads by itself."""

    def rebalance(self) -> None: ...


class LoadBalance(OnUpdate):
    """Has every mixture of experts move its bias."""

    protocol = Balanced

    def on_update(self, trainer: pl.Trainer, pl_module: Any, outputs: Any, batch: Any) -> None:
        for layer in self.modules:
            layer.rebalance()
