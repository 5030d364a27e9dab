"""Hidden states to vocabulary logits, at the chosen positions only.

The vocabulary is by far the widest layer of a small model: logits at the 15 % masked positions
cost 15 % of what logits everywhere cost.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from chimera.contract import Norm


class Head(nn.Module):
    """Vocabulary logits.

    Args:
        dim: width d.
        vocab_size: V.
        linear: factory of the output matrix, and of BERT's transform.
        norm: factory of the transform's norm.
        table: reads the embedding table [V d] that the output matrix is tied to; None: not tied.
        transform: BERT's linear, GELU and norm first (arXiv 1810.04805).
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
        self.table, self.vocab_size = table, vocab_size
        self.transform = linear(dim, dim, bias=True, role="head") if transform else None
        self.norm = norm(dim) if transform else None
        self.output = None if table else linear(dim, vocab_size, bias=False, role="head")
        self.bias = nn.Parameter(torch.zeros(vocab_size)) if bias else None

    def forward(self, x: Float[Tensor, "... d"]) -> Float[Tensor, "... v"]:
        if self.transform is not None and self.norm is not None:
            x = F.gelu(self.transform(x))
            # Norms take [b t d]; the rows here are gathered positions.
            x = self.norm(x.reshape(1, -1, x.shape[-1])).reshape(x.shape)
        if self.output is None and self.table is not None:
            return F.linear(x, self.table(), self.bias)
        assert self.output is not None
        logits = self.output(x)
        return logits if self.bias is None else logits + self.bias
