"""How callbacks find each other among the trainer's, and the modules of a model that they call.

Does not import torch: signatures of callbacks are read before it is loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import lightning.pytorch as pl
    from torch import nn

Kind = TypeVar("Kind")


def find(trainer: pl.Trainer, kind: type[Kind]) -> Kind:
    """The trainer's callback of this class; each run has one (`chimera.train.callbacks.NEEDED`)."""
    return next(c for c in trainer.callbacks if isinstance(c, kind))  # type: ignore[attr-defined]


def parts_with(model: nn.Module, method: str) -> list[Any]:
    """Modules of a model that have a method of this name, which a component's callback calls."""
    return [module for module in model.modules() if hasattr(module, method)]


def with_method(trainer: pl.Trainer, name: str) -> list[Any]:
    """The trainer's callbacks that have a method of this name, in the order of their calls."""
    return [c for c in trainer.callbacks if hasattr(c, name)]  # type: ignore[attr-defined]
