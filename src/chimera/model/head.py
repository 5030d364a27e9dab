"""Vocabulary head: hidden states to logits.

The head is by far the widest layer of a small model. Callers therefore pass only the positions with
targets: at 15 % masked positions, logits cost 15 % of logits at all positions.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from chimera.contract import Norm


class Head(nn.Module):
    """Vocabulary logits [… v] of hidden states [… d].

    Args:
        dim: width d.
        vocab_size: entries v of the vocabulary.
        linear: factory of the output matrix, and of BERT's transform.
        norm: factory of the transform's norm.
        table: function that returns the embedding table [v d], for a tied head; None for an untied
            head.
        transform: apply BERT's linear layer, GELU and norm first (arXiv 1810.04805).
        bias: a bias per vocabulary entry.
    """

    component = "head"

    def __init__(
        self,
        dim: int,
        vocab_size: int,
        *,
        linear: Callable[..., nn.Module],
        norm: Callable[[int], Norm],
        table: Callable[[], Tensor] | None = None,
        transform: bool = True,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.table = table
        self.vocab_size = vocab_size
        self.transform = linear(dim, dim, bias=True, role="head") if transform else None
        self.norm = norm(dim) if transform else None
        self.output = None if table else linear(dim, vocab_size, bias=False, role="head")
        self.bias = nn.Parameter(torch.zeros(vocab_size)) if bias else None

    def forward(self, x: Float[Tensor, "... d"]) -> Float[Tensor, "... v"]:
        if self.transform is not None and self.norm is not None:
            x = F.gelu(self.transform(x))
            # Norms need [b t d]; x has any leading axes, often gathered positions [n d].
            x = self.norm(x.reshape(1, -1, x.shape[-1])).reshape(x.shape)
        if self.output is None and self.table is not None:
            return F.linear(x, self.table(), self.bias)
        assert self.output is not None
        logits = self.output(x)
        return logits if self.bias is None else logits + self.bias
