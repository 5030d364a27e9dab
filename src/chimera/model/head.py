"""Vocabulary head: hidden states to logits.

The head is by far the widest layer of a small model. Callers therefore pass only the positions with
targets: at 15 % masked positions, logits cost 15 % of logits at all positions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from chimera.contract import Norm
from chimera.ops.straight import straight
from chimera.quant.shared.inputs import rounded


class TableLayer(nn.Linear):
    """The table of an embedding [v d] as a layer, with the same parameter and quantisation."""

    def __init__(self, embedding: Any) -> None:
        rows, width = embedding.weight.shape
        super().__init__(width, rows, bias=False, device="meta")
        self.weight = embedding.weight
        self.rule = getattr(embedding, "rule", None)

    def forward(
        self, x: Float[Tensor, "... d"], bias: Float[Tensor, " v"] | None = None
    ) -> Float[Tensor, "... v"]:
        quantised = self.rule and straight(self.weight, self.rule.quantised(self.weight))
        return F.linear(x, self.weight if quantised is None else quantised, bias)


class Head(nn.Module):
    """Vocabulary logits [… v] of hidden states [… d].

    A tied head that the quantiser quantises (`quant.head=true`) is its linear layer with the table
    as the weight: norm and grid of the inputs included (SPEC E11; TITAN eq. 16, Algorithm 3).

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
        self.inputs = _inputs(linear, dim) if table else None
        self.bias = nn.Parameter(torch.zeros(vocab_size)) if bias else None

    def add_layer(self, embedding: nn.Module, *, tied: bool) -> None:
        """Give a tied head a layer, which other libraries look for, train, wrap and untie.

        Args:
            embedding: of the table.
            tied: whether the layer's weight is still the table, or starts as a copy.
        """
        layer = TableLayer(embedding)
        if not tied:
            layer.weight = nn.Parameter(layer.weight.detach().clone())
        self.output = layer
        self.table = None

    def forward(self, x: Float[Tensor, "... d"]) -> Float[Tensor, "... v"]:
        if self.transform is not None and self.norm is not None:
            x = F.gelu(self.transform(x))
            # Norms need [b t d]; x has any leading axes, often gathered positions [n d].
            x = self.norm(x.reshape(1, -1, x.shape[-1])).reshape(x.shape)
        if self.inputs is not None:
            x = rounded(self.inputs, x)
        if self.output is None and self.table is not None:
            return F.linear(x, self.table(), self.bias)
        assert self.output is not None
        if isinstance(self.output, TableLayer):  # which peft has not wrapped
            return self.output(x, self.bias)
        logits = self.output(x)
        return logits if self.bias is None else logits + self.bias


def _inputs(linear: Callable[..., nn.Module], dim: int) -> nn.Module | None:
    """What the quantiser does to the inputs of a head, for one whose weight is the table."""
    with torch.random.fork_rng(devices=[]):  # a layer that is not kept draws nothing
        inputs: nn.Module | None = getattr(linear(dim, 1, bias=False, role="head"), "inputs", None)
    return inputs
