"""What components are built with, called with, and return.

Dimensions in shapes: b (batch), t (tokens), d (model width). Components import these classes from
`chimera.contract`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True)
class Site:
    """Model settings and layer index that a component is built with.

    Args:
        dim: model width d.
        heads: attention heads h of the model; a mixer may use another number.
        depth: number of physical layers.
        layer: index of this physical layer, from 0.
        loops: number of traversals of the stack of physical layers (TITAN Alg. 1).
        causal: True for a decoder, False for an encoder.
        max_len: largest sequence length in training, in tokens.
        dropout: dropout probability inside mixers and ffns.
    """

    dim: int
    heads: int
    depth: int = 1
    layer: int = 0
    loops: int = 1
    causal: bool = False
    max_len: int = 512
    dropout: float = 0.0

    def logical(self, loop: int) -> int:
        """Index of this layer in the unrolled stack, from 0 (TITAN Alg. 1 counts from 1)."""
        return loop * self.depth + self.layer


@dataclass(frozen=True)
class Context:
    """Inputs of one forward pass that all layers share.

    Args:
        pos: [b t] or [1 t], position of each token; padding is not counted.
        mask: [b t], True for real tokens, False for padding; None if there is no padding.
        loop: index of this traversal of the stack, from 0.
        draws: [b t], key of each token's dropout (`ops.dropout`); None for draws by torch's
            generator, or without dropout.
        documents: [b t], number of each token's document in its row; None if rows are not packed.
        memo: results of `cached`, which all layers and traversals of the stack share.
    """

    pos: Int[Tensor, "#b t"]
    mask: Bool[Tensor, "b t"] | None = None
    loop: int = 0
    draws: Int[Tensor, "b t"] | None = None
    documents: Int[Tensor, "b t"] | None = None
    memo: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def cached(self, key: str, make: Callable[[], Any]) -> Any:
        """`make()`, computed by the first layer that asks.

        For functions of `pos`, `mask` and of constants that the key names.

        A graph of torch.compile computes equal expressions once without it.
        """
        if torch.compiler.is_compiling():
            return make()
        if key not in self.memo:
            self.memo[key] = make()
        return self.memo[key]

    def take(self, rows: Int[Tensor, " n"]) -> Context:
        """Inputs of the sequences `rows` alone."""
        names = ("pos", "mask", "draws", "documents")
        given = {name: x for name in names if (x := getattr(self, name)) is not None}
        taken = {n: x if len(x) == 1 else x.index_select(0, rows) for n, x in given.items()}
        return replace(self, **taken, memo={})


@dataclass(frozen=True)
class Out:
    """Output of a mixer or ffn.

    Args:
        y: [b t d], added to the residual stream.
        state: recurrent state or cache for the next call; None if the argument `state` was None.
        aux: auxiliary losses by key (`balance`, `ode`); the task sets their weights.
        stats: scalars to log (`expert_load_0`, `drop_rate`), without gradients.
    """

    y: Float[Tensor, "b t d"]
    state: Any = None
    aux: dict[str, Tensor] = field(default_factory=dict)
    stats: dict[str, Tensor] = field(default_factory=dict)
