"""Cross entropy over a large vocabulary without all logits in memory at once.

    L = −(1/n) Σ_i log softmax(z_i)[y_i],   z_i = head(x_i),   x [n d], y [n]

For 2048 positions and GPT-2's 50,257 entries, the logits take 0.4 GB, their softmax and their
gradient as much again each. This function keeps at most `at_once` logits in memory. If that takes
several parts, the backward pass computes the logits of each part again. The softmax is in float32
or wider.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from chimera.ops.precision import widen


def cross_entropy(
    head: Callable[[Tensor], Tensor],
    x: Float[Tensor, "n d"],
    targets: Int[Tensor, " n"],
    *,
    width: int,
    at_once: int,
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Mean loss, and accuracy: the share of targets with the largest logit (without a gradient).

    Args:
        head: function of hidden states [m d] to logits [m width].
        x: hidden states.
        targets: token ids to predict.
        width: entries of the vocabulary.
        at_once: number of logits in memory at one time; a part has at least one position.
    """

    def part(x: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        logits = head(x)
        logits = widen(logits)
        hits = (logits.detach().argmax(-1) == targets).sum()
        return F.cross_entropy(logits, targets, reduction="sum"), hits

    rows = max(1, at_once // width)
    if len(x) <= rows:
        losses, hits = part(x, targets)
    else:
        parts = zip(x.split(rows), targets.split(rows), strict=True)
        sums = [checkpoint(part, *p, use_reentrant=False) for p in parts]
        losses, hits = (torch.stack(of).sum() for of in zip(*sums, strict=True))
    return losses / len(x), hits / len(x)
