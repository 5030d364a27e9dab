"""Lengths of a run in optimiser steps and batches, once the data are known.

`fast_dev_run` and `overfit_batches` set other lengths; they do so in the composition, so that
config.yaml has the lengths that count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_type_hints

from omegaconf import DictConfig

from chimera import dotted
from chimera.config.choices import Selection
from chimera.config.schema import check_value
from chimera.config.settings import Trainer
from chimera.errors import UserError
from chimera.types import PositiveInt


@dataclass(frozen=True)
class TrainerInSteps(Trainer):
    """Trainer settings whose lengths are optimiser steps and numbers of batches."""

    max_steps: PositiveInt = 1
    limit_val_batches: PositiveInt | None = None
    limit_test_batches: PositiveInt | None = None


def apply_debug(cfg: DictConfig, chosen: Selection, settings: Mapping[str, Any]) -> None:
    """Let `debug=` win over rows and scale; set what `fast_dev_run` and `overfit_batches` mean.

    Args:
        cfg: composed; changed in place.
        chosen: its files; that of `debug=` sets keys of the trainer only.
        settings: keys of the command line, which win over `debug=`.

    Raises:
        UserError: a value of these two that is of another type or range.
    """
    for node in (node for group, _, node in chosen.files if group == "debug"):
        for key, value in dotted.flatten(node).items():
            if key not in settings:
                dotted.put(cfg, key, value)
    trainer = cfg.trainer
    for key in ("overfit_batches", "fast_dev_run"):
        if trainer.get(key) is not None:
            hints = get_type_hints(Trainer, include_extras=True)
            check_value(f"trainer.{key}", trainer[key], hints[key])
    if trainer.get("overfit_batches"):
        trainer.limit_train_batches = trainer.limit_val_batches = trainer.overfit_batches
    if trainer.get("fast_dev_run"):
        batches = int(trainer.fast_dev_run)
        for part in ("train", "val", "test"):
            trainer[f"limit_{part}_batches"] = batches
        trainer.max_steps = -(-batches // trainer.accumulate_grad_batches)
        trainer.max_epochs = trainer.check_val_every_n_epoch = None
        trainer.val_check_interval = trainer.max_steps


def in_steps(
    settings: Trainer, batches: int, *, valid: int | None = None, test: int | None = None
) -> TrainerInSteps:
    """Convert epochs to optimiser steps, and shares of batches to their number.

    Args:
        settings: of the configuration.
        batches: micro-batches of one epoch.
        valid, test: batches of these splits; None where they are not known.

    Raises:
        UserError: a share that is less than one batch.
    """
    epoch = -(-batches // settings.accumulate_grad_batches)
    limits = [settings.max_steps] if settings.max_steps else []
    limits += [settings.max_epochs * epoch] if settings.max_epochs else []
    lengths = {
        "max_steps": min(limits),
        "limit_val_batches": number("limit_val_batches", settings.limit_val_batches, valid),
        "limit_test_batches": number("limit_test_batches", settings.limit_test_batches, test),
    }
    return TrainerInSteps(**{**vars(settings), **lengths})


def number(key: str, limit: float | None, batches: int | None) -> int | None:
    """Number of batches that a limit means; None for all of them.

    Args:
        key: of the limit, in `trainer`.
        limit: a number of batches, or a share of them if it is a float.
        batches: all of them; None where that is not known.

    Raises:
        UserError: the share is less than one batch.
    """
    if limit is None or isinstance(limit, int):
        return limit
    if batches is None or limit == 1.0:
        return None
    if int(limit * batches) == 0:
        raise UserError(
            f"trainer.{key}={limit} of {batches} batches is less than one; use a larger share, or"
            " a number of batches, which has no point"
        )
    return int(limit * batches)
