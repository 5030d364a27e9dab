"""Sequence classifier: backbone, pooling, dense layer with tanh, class logits.

    z = W₂ tanh(W₁ pool(h) + b₁) + b₂        (arXiv 1810.04805, 4.1)

Shapes: h [b t d], z [b c]; c is 1 for a regression.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from chimera.ops.dropout import dropout, label
from chimera.ops.precision import autocast_off, wide, widen
from chimera.quant.shared.layers import Linear

Pool = Literal["auto", "first", "mean", "last"]
POOLED = label("pooled")
DENSE = label("dense")


@dataclass(frozen=True)
class Classification:
    """Logits [b c], and `aux` and `stats` of `Out`."""

    logits: Float[Tensor, "b c"]
    aux: dict[str, Tensor] = field(default_factory=dict)
    stats: dict[str, Tensor] = field(default_factory=dict)


def pooled(
    x: Float[Tensor, "b t d"], mask: Bool[Tensor, "b t"] | None, pool: Pool
) -> Float[Tensor, "b d"]:
    """One vector per sequence: its first or last real token, or the mean over real tokens."""
    if mask is None:
        mask = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
    if pool == "mean":
        share = mask / mask.sum(1, keepdim=True).clamp(min=1)
        with autocast_off(x):
            return torch.einsum("btd,bt->bd", widen(x), share.to(wide(x))).to(x.dtype)
    place = torch.arange(x.shape[1], device=x.device)
    index = mask.long().argmax(1) if pool == "first" else (mask * place).argmax(1)
    return x[torch.arange(len(x), device=x.device), index]


class ClassificationHead(nn.Module):
    """Dropout, dense layer with tanh, dropout, logits."""

    component = "head"

    def __init__(self, dim: int, outputs: int, *, dropout: float, hidden: bool) -> None:
        super().__init__()
        self.dense = Linear(dim, dim, bias=True, role="head") if hidden else None
        self.out = Linear(dim, outputs, bias=True, role="head")
        self.dropout = dropout
        for layer in (self.dense, self.out):
            if layer is not None:
                nn.init.normal_(layer.weight, std=0.02)
                nn.init.zeros_(layer.bias)

    def forward(
        self, x: Float[Tensor, "b d"], draws: Int[Tensor, " b"] | None = None
    ) -> Float[Tensor, "b c"]:
        x = dropout(x, self.dropout, self.training, draws, POOLED)
        if self.dense is not None:
            x = dropout(torch.tanh(self.dense(x)), self.dropout, self.training, draws, DENSE)
        return self.out(x)


class Classifier(nn.Module):
    """Token ids to class logits.

    Args:
        backbone: function of ids and mask to hidden states, with `width`, `summary` (its pooling)
            and `reads_segments`.
        outputs: number of classes, or 1 for a regression.
        pool: pooling of hidden states; `auto` for the backbone's `summary`.
        dropout: dropout probability in the head.
        hidden: add a dense layer with tanh before the logits.
    """

    def __init__(
        self,
        backbone: Any,
        outputs: int,
        *,
        pool: Pool = "auto",
        dropout: float = 0.1,
        hidden: bool = True,
    ) -> None:
        super().__init__()
        self.backbone: nn.Module = backbone
        self.pool: Pool = backbone.summary if pool == "auto" else pool
        self.reads_segments: bool = backbone.reads_segments
        self.classifier = ClassificationHead(
            backbone.width, outputs, dropout=dropout, hidden=hidden
        )

    def forward(
        self,
        ids: Int[Tensor, "b t"],
        mask: Bool[Tensor, "b t"] | None = None,
        segments: Int[Tensor, "b t"] | None = None,
        draws: Int[Tensor, " b"] | None = None,
    ) -> Classification:
        """Logits of each sequence.

        Args:
            ids, mask, draws: see `Backbone.forward`.
            segments: 1 in the second text.
        """
        kwargs = {"segments": segments} if self.reads_segments else {}
        out = self.backbone(ids, mask, draws=draws, **kwargs)
        logits = self.classifier(pooled(out.y, mask, self.pool), draws)
        return Classification(logits, out.aux, out.stats)


def head_of(task: Mapping[str, Any]) -> Callable[[Any], nn.Module]:
    """Function that replaces a model's head by that of a task's configuration.

    For checks of a configuration before data are read; the number of classes is a placeholder.
    """
    if not {"pool", "hidden"} <= set(task):
        return lambda model: model
    options = {key: task[key] for key in ("pool", "dropout", "hidden")}
    return lambda model: Classifier(model.backbone, 2, **options)
