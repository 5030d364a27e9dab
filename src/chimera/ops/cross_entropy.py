"""Cross entropy over a large vocabulary without ever holding all logits.

    L = −(1/n) Σ_i log softmax(z_i)[y_i],   z_i = head(x_i)

At 2048 positions and GPT-2's 50,257 entries the logits are 0.4 GB, and as much again for their
softmax and for their gradient. Here at most `at_once` numbers of them exist at a time; where that
takes several parts, each is computed a second time in the backward pass. The softmax is in float32
at least. x [n d], y [n].
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint


def cross_entropy(
    head: Callable[[Tensor], Tensor],
    x: Float[Tensor, "n d"],
    targets: Int[Tensor, " n"],
    *,
    width: int,
    at_once: int,
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Mean loss, and the share of targets that had the largest logit (without a gradient).

    Args:
        head: hidden states to logits.
        x: hidden states.
        targets: what is to be predicted.
        width: entries of the vocabulary.
        at_once: logits held at one time, at least one position's.
    """

    def part(x: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        logits = head(x)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        hits = (logits.detach().argmax(-1) == targets).sum()
        return F.cross_entropy(logits, targets, reduction="sum"), hits

    rows = max(1, at_once // width)
    if len(x) <= rows:
        losses, hits = part(x, targets)
    else:
        parts = zip(x.split(rows), targets.split(rows), strict=True)
        found = [checkpoint(part, *p, use_reentrant=False) for p in parts]
        losses, hits = (torch.stack(of).sum() for of in zip(*found, strict=True))
    return losses / len(x), hits / len(x)
