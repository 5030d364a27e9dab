"""The interfaces of all components. Every component imports this module; it imports none of them.

Shapes are written b (batch), t (tokens), d (model width), h (heads), k (key) and v (value width).
Build time: a mixer or ffn is constructed as `(site, parts, *, its own hyperparameters)`.
Run time:   a mixer is `(x[b t d], ctx, state=None) -> Out`, an ffn `(x[b t d], ctx) -> Out`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

from jaxtyping import Bool, Float, Int, Int8
from torch import Tensor, nn

# Re-exported: hyperparameter types are part of what a component is written with.
from chimera.types import Fraction as Fraction
from chimera.types import NonNegativeFloat as NonNegativeFloat
from chimera.types import NonNegativeInt as NonNegativeInt
from chimera.types import PositiveFloat as PositiveFloat
from chimera.types import PositiveInt as PositiveInt
from chimera.types import ProperFraction as ProperFraction

#: What a linear layer is for; lets a quantiser skip the head or rotate the output projections only.
Role = Literal["qkv", "gate", "out", "up", "down", "head", "embedding"]
#: How a position reaches a mixer: added to the embedding, by rotating q and k, or on the scores.
Hook = Literal["embed", "rotate", "bias"]
Direction = Literal["causal", "bidirectional"]

BOTH: frozenset[Direction] = frozenset({"causal", "bidirectional"})
CAUSAL: frozenset[Direction] = frozenset({"causal"})


@dataclass(frozen=True)
class Site:
    """Where a part sits.

    Args:
        dim: model width d.
        heads: attention heads h of the model; a mixer may have a choice of its own.
        depth: number of physical layers.
        layer: physical index of this layer, from 0.
        loops: how often the stack of physical layers is traversed (TITAN Alg. 1).
        causal: decoder (True) or encoder (False).
        max_len: the longest sequence trained on.
        dropout: probability inside mixers and ffns.
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
        """Index of this layer in the unrolled stack, from 0 (TITAN Alg. 1, there from 1)."""
        return loop * self.depth + self.layer


@dataclass(frozen=True)
class Ctx:
    """Inputs of one forward pass that every layer gets.

    Args:
        pos: [b t] or [1 t] position of each token among the real ones; padding does not count.
        mask: [b t], True where the token is real; None if all are.
        loop: which traversal of the stack this is, from 0.
    """

    pos: Int[Tensor, "#b t"]
    mask: Bool[Tensor, "b t"] | None = None
    loop: int = 0


@dataclass(frozen=True)
class Out:
    """Output of a mixer or ffn.

    Args:
        y: [b t d], added to the residual stream.
        state: for the next call to continue from; None if `state=None` was given.
        aux: losses by key (`balance`, `ode`); the task owns their weights.
        stats: scalars worth a chart (`expert_load_0`, `drop_rate`); no gradients.
    """

    y: Float[Tensor, "b t d"]
    state: Any = None
    aux: dict[str, Tensor] = field(default_factory=dict)
    stats: dict[str, Tensor] = field(default_factory=dict)


class Linear(Protocol):
    """A linear layer or its stand-in: has `weight` and `role`, maps [… d_in] to [… d_out]."""

    weight: Tensor
    role: Role

    def __call__(self, x: Tensor) -> Tensor: ...


@runtime_checkable
class Packable(Protocol):
    """Optional, of a layer or embedding with ternary weights: what export packs."""

    def ternary(self) -> tuple[Int8[Tensor, "n d"], Tensor]:
        """Codes −1, 0, 1 and their scale, [] or [rows 1], as the forward pass uses them."""

    def packed(self, *, cache: bool = False) -> nn.Module:
        """A module that computes the same in evaluation from five weights to a byte.

        Args:
            cache: keep the codes unpacked too.
        """


class Quantiser(Protocol):
    """A factory of linear layers and embeddings, all of one number format."""

    def linear(self, d_in: int, d_out: int, *, bias: bool, role: Role) -> nn.Module:
        """A layer [… d_in] → [… d_out] with attributes `weight` and `role`."""

    def embedding(self, entries: int, dim: int) -> Any:
        """A module [… ] → [… dim] whose `table()` is [entries dim] as the forward pass reads it."""


class Norm(nn.Module):
    """`(x[b t d], mask[b t] | None) -> [b t d]`; the mask keeps padding out of statistics."""

    component: ClassVar[str] = "norm"

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        raise NotImplementedError


class Position(nn.Module):
    """Three hooks, no-ops by default. `provides` names those that a subclass fills in.

    A position that only embeds is built once for the model; one that rotates or biases is built
    once per layer, as `(site, heads, head_dim)`, and may hold parameters of its own there.
    """

    component: ClassVar[str] = "position"
    provides: ClassVar[frozenset[Hook]] = frozenset()

    def __init__(self, site: Site, heads: int, head_dim: int) -> None:
        super().__init__()

    def embed(self, x: Float[Tensor, "b t d"], pos: Int[Tensor, "#b t"]) -> Tensor:
        """Token embeddings with their positions added."""
        return x

    def rotate(
        self, q: Float[Tensor, "b h t k"], k: Float[Tensor, "b g t k"], pos: Int[Tensor, "#b t"]
    ) -> tuple[Tensor, Tensor]:
        """Queries and keys (g may be fewer heads than h) turned by their positions."""
        return q, k

    def bias(self, pos_q: Int[Tensor, "#b t"], pos_k: Int[Tensor, "#b s"]) -> Tensor | None:
        """[b h t s] or [1 h t s], added to the scores before the softmax; None for nothing."""
        return None


class Mixer(nn.Module):
    """Mixes tokens. Subclasses are constructed as `(site, parts, *, hyperparameters)`.

    The class attributes are its capabilities; the zoo table and the gates read them.
    """

    component: ClassVar[str]  # the name by which optim.rates speaks of its parameters
    directions: ClassVar[frozenset[Direction]] = BOTH
    honours: ClassVar[frozenset[Hook]] = frozenset({"embed"})
    forms: ClassVar[tuple[str, ...]] = ("parallel",)  # of parallel, chunkwise, recurrent
    source: ClassVar[str] = ""  # SPEC id, paper
    cost: ClassVar[str] = ""  # of a forward pass in sequence length t (table only)
    state_size: ClassVar[str] = ""  # numbers kept per sequence and layer when decoding

    def init_state(self, batch: int) -> Any:
        """A fresh state for `batch` sequences: given to `forward`, it makes the call a prefill."""
        raise NotImplementedError

    def reset_parameters(self) -> None:
        """Set weights that need values of their own; called after all others were initialised."""

    def forward(self, x: Tensor, ctx: Ctx, state: Any = None) -> Out:
        raise NotImplementedError


class FFN(nn.Module):
    """Works on each token alone. Constructed as `(site, parts, *, hyperparameters)`."""

    component: ClassVar[str] = "ffn"
    source: ClassVar[str] = ""

    def reset_parameters(self) -> None:
        """Set weights that need values of their own; called after all others were initialised."""

    def forward(self, x: Tensor, ctx: Ctx) -> Out:
        raise NotImplementedError


@dataclass(frozen=True)
class Parts:
    """Factories of the chosen quantiser, norm and position, for mixers and ffns to build with."""

    linear: Callable[..., Any]  # (d_in, d_out, *, bias: bool, role: Role)
    norm: Callable[[int], Norm]  # (dim)
    position: Callable[[Site, int, int], Position]  # (site, heads, head_dim)


MixerFactory = Callable[[Site, Parts], Mixer]
FFNFactory = Callable[[Site, Parts], FFN]
