"""Callbacks find each other among the trainer's, so that a configuration names each one alone."""

from __future__ import annotations

from typing import Any, TypeVar

import lightning.pytorch as pl
from torch import nn

from chimera.errors import UserError

Kind = TypeVar("Kind")


def find(trainer: pl.Trainer, kind: type[Kind]) -> Kind:
    """The trainer's callback of this class.

    Raises:
        UserError: there is none.
    """
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, kind):
            return callback
    raise UserError(f"the callbacks lack a {kind.__name__}, which another one needs; add it")


def parts_with(model: nn.Module, method: str) -> list[Any]:
    """Modules of a model that have a method of this name, which a component's callback calls."""
    return [module for module in model.modules() if hasattr(module, method)]


def with_method(trainer: pl.Trainer, name: str) -> list[Any]:
    """The trainer's callbacks that have a method of this name, in the order of their calls."""
    return [c for c in trainer.callbacks if hasattr(c, name)]  # type: ignore[attr-defined]
