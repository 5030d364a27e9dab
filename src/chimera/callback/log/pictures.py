"""Pictures of a model at validation: activations.png, weights.png, maps.png, gates.png.

They are in the run's directory, and with every logger that has a method `show_picture(key, file)`.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.trainer.states import TrainerFn

from chimera.callback.log import drawing
from chimera.callback.log.captured import Captured, influence, ternary_weights
from chimera.types import NonNegativeInt, PositiveInt

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Fewest tokens of a sample from which a map is drawn.
SHORTEST = 4


class Pictures(Callback):
    """Draws the final validation, and others on demand; changes no number of the run.

    The first batch of a validation that is drawn has hooks; all other batches, and training, have
    none. Runs on several processes and compiled models are not drawn.

    Args:
        every: also draw each n-th validation during training; None draws the final one only.
        shortest: fewest optimiser steps of a run that is drawn.
        tokens: of a validation sample that maps show.
    """

    def __init__(
        self,
        *,
        every: PositiveInt | None = None,
        shortest: NonNegativeInt = 100,
        tokens: PositiveInt = 48,
    ) -> None:
        self.every, self.shortest, self.tokens = every, shortest, tokens
        self._validations = 0
        self._captured: Captured | None = None

    def on_validation_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:  # fmt: skip
        if batch_idx == dataloader_idx == 0 and self._is_due(trainer, pl_module):
            self._captured = Captured(self.tokens)
            self._captured.watch(_model(pl_module))

    def on_validation_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any,
        batch_idx: int, dataloader_idx: int = 0,
    ) -> None:  # fmt: skip
        if self._captured is None:
            return
        captured, self._captured = self._captured, None
        captured.release()
        total = int(getattr(pl_module, "total_steps", 0))
        step = total if _is_final(trainer) else trainer.global_step
        for name, figure in self._figures(captured, pl_module, step):
            file = Path(trainer.default_root_dir) / f"{name}.png"
            figure.savefig(file, dpi=110, metadata={"Software": None})
            for logger in trainer.loggers:
                if show := getattr(logger, "show_picture", None):
                    show(f"pictures/{name}", file)

    def on_exception(self, trainer: pl.Trainer, pl_module: Any, exception: BaseException) -> None:
        if self._captured is not None:
            self._captured.release()
            self._captured = None

    def _is_due(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> bool:
        steps = getattr(pl_module, "total_steps", 0)
        compiled = getattr(_model(pl_module), "_compiled_call_impl", None) is not None
        if trainer.world_size > 1 or compiled or steps < self.shortest or trainer.sanity_checking:
            return False
        if find_spec("matplotlib") is None:  # on a lent machine, say: `make gpu` carries none
            return False
        if _is_final(trainer):
            return True
        self._validations += 1
        return self.every is not None and self._validations % self.every == 0

    def _figures(
        self, captured: Captured, pl_module: pl.LightningModule, step: int
    ) -> Iterator[tuple[str, Figure]]:
        if captured.norms:
            yield "activations", drawing.activations(captured.norms, step)
        if layers := ternary_weights(_model(pl_module)):
            yield "weights", drawing.weights(layers, step)
        shares = {
            name: influence(mixer, x)
            for name, (mixer, x) in drawing.some(captured.mixers, drawing.PANELS - 1).items()
            if len(x) >= SHORTEST
        }
        if shares:
            yield "maps", drawing.maps(shares, step)
        if captured.gates:
            yield "gates", drawing.gates(captured.gates, step)


def _model(pl_module: pl.LightningModule) -> Any:
    return getattr(pl_module, "model", pl_module)


def _is_final(trainer: pl.Trainer) -> bool:
    """Whether this is the validation after training."""
    return trainer.state.fn == TrainerFn.VALIDATING
