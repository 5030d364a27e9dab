"""Losses of `labels`, as transformers' Trainer wants them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

#: Label of a token that is not predicted.
IGNORED = -100


def cross_entropy(
    logits: Tensor, labels: Tensor, num_items_in_batch: Tensor | int | None = None, **_: Any
) -> Tensor:
    """Mean over the labelled tokens, or the sum divided by the number that the trainer gives."""
    how = "mean" if num_items_in_batch is None else "sum"
    loss = F.cross_entropy(
        logits.flatten(0, 1).float(),
        labels.flatten().to(logits.device),
        ignore_index=IGNORED,
        reduction=how,
    )
    if num_items_in_batch is None:
        return loss
    return loss / torch.as_tensor(num_items_in_batch, device=loss.device)


def of_labels(logits: Tensor, labels: Tensor, config: Any) -> Tensor:
    """Loss of logits [b c]: of classes [b], of scores [b] if c is 1, of several classes [b c]."""
    several = config.problem_type == "multi_label_classification"
    if several or (labels.ndim == 2 and labels.is_floating_point()):
        return F.binary_cross_entropy_with_logits(logits.float(), labels.float())
    if config.num_labels == 1:
        return F.mse_loss(logits.float().flatten(), labels.float().flatten())
    return F.cross_entropy(logits.float(), labels.long().flatten(), ignore_index=IGNORED)


def with_auxiliary(loss: Tensor, auxiliary: Mapping[str, Tensor] | None, config: Any) -> Tensor:
    """Add auxiliary losses by the factors of the configuration."""
    for key, value in (auxiliary or {}).items():
        if factor := (config.auxiliary or {}).get(key):
            loss = loss + factor * value
    return loss
