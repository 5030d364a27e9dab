"""Interfaces of all components. Components import this module; this module imports no component.

Dimensions in shapes: b (batch), t (tokens), d (model width), h (heads), k (key width), v (value
width).
Construction: `Mixer(site, parts, *, hyperparameters)`, `FFN(site, parts, *, hyperparameters)`.
Call: `mixer(x[b t d], ctx, state=None) -> Out`, `ffn(x[b t d], ctx) -> Out`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int, Int8
from torch import Tensor, nn

from chimera.errors import UserError

# Re-exported, so that a component imports all that it needs from this module.
from chimera.types import Fraction as Fraction
from chimera.types import NonNegativeFloat as NonNegativeFloat
from chimera.types import NonNegativeInt as NonNegativeInt
from chimera.types import PositiveFloat as PositiveFloat
from chimera.types import PositiveInt as PositiveInt
from chimera.types import ProperFraction as ProperFraction

#: Purpose of a linear layer. A quantiser uses it to skip the head or to rotate only outputs.
Role = Literal["qkv", "gate", "out", "up", "down", "head", "embedding"]
#: How a mixer gets positions: added to embeddings, by rotating q and k, as a bias of scores, or as
#: a bias that depends on the queries and keys themselves.
Hook = Literal["embed", "rotate", "bias", "content"]
Direction = Literal["causal", "bidirectional"]

BOTH: frozenset[Direction] = frozenset({"causal", "bidirectional"})
CAUSAL: frozenset[Direction] = frozenset({"causal"})


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
        dropout: dropout probability of branches and attention weights.
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

    def take(self, rows: Int[Tensor, " n"] | slice) -> Context:
        """Inputs of the sequences `rows` alone."""
        names = ("pos", "mask", "draws", "documents")
        given = {name: x for name in names if (x := getattr(self, name)) is not None}
        taken = {n: x if len(x) == 1 else x[rows] for n, x in given.items()}
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


class Linear(Protocol):
    """A linear layer or its replacement: has `weight` and `role`, maps [… d_in] to [… d_out]."""

    weight: Tensor
    role: Role

    def __call__(self, x: Tensor) -> Tensor: ...


@runtime_checkable
class Packable(Protocol):
    """Optional protocol of layers and embeddings whose weights an export packs."""

    def packed(self, *, cache: bool = False) -> nn.Module:
        """Module with packed weights; its output equals that of evaluation mode.

        Args:
            cache: also keep the unpacked codes.
        """


@runtime_checkable
class Ternary(Packable, Protocol):
    """Optional protocol of layers and embeddings with ternary weights, five of them in a byte."""

    def ternary(self) -> tuple[Int8[Tensor, "n d"], Tensor]:
        """Codes −1, 0, 1 and their scale, [] or [rows 1]: the values of the forward pass."""


@runtime_checkable
class EvaluatedBy(Protocol):
    """Optional protocol of parts whose trained weights can be evaluated by several rules.

    A run is also validated by each rule that is not the chosen one
    (`chimera.train.record`).
    """

    def other_rules(self) -> tuple[str, ...]:
        """Names of the rules that are not the chosen one."""

    def evaluate_by(self, rule: str | None) -> None:
        """Evaluate by a rule from now on; None: by the chosen one."""


class Quantiser(Protocol):
    """Factory of linear layers and embeddings in one number format."""

    quantises: bool  # whether linear layers differ from torch's
    quantise_head: bool
    quantise_embedding: bool

    def linear(self, d_in: int, d_out: int, *, bias: bool, role: Role) -> nn.Module:
        """Linear layer [… d_in] → [… d_out] with attributes `weight` and `role`."""

    def embedding(self, entries: int, dim: int) -> Any:
        """Embedding [… ] → [… dim]; `table()` returns the quantised weights [entries dim]."""

    def activation(self, dim: int) -> nn.Module | None:
        """Activation grid [… dim] → [… dim], as that of inputs of linear layers; None without."""


class Norm(nn.Module):
    """Normalisation `(x[b t d], mask[b t] | None) -> [b t d]`; statistics exclude masked tokens."""

    component: ClassVar[str] = "norm"

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        raise NotImplementedError


class Position(nn.Module):
    """Position encoding with four hooks, no-ops by default; `provides` names the overridden hooks.

    The model has one instance if `provides` is {"embed"} only, otherwise one per layer, built as
    `(site, heads, head_dim)`. An instance may have parameters.
    """

    component: ClassVar[str] = "position"
    in_mixer: bool = False  # whether its parameters count as the mixer's, in optim.rates
    provides: ClassVar[frozenset[Hook]] = frozenset()
    max_positions: int | None = None  # largest number of positions; None for any

    def too_long(self, positions: int) -> str:
        """Why the part does not take so many positions; only called above `max_positions`."""
        return f"{type(self).__name__} has {self.max_positions} positions, not {positions}"

    def __init__(self, site: Site, heads: int, head_dim: int) -> None:
        super().__init__()

    def embed(self, x: Float[Tensor, "b t d"], pos: Int[Tensor, "#b t"]) -> Tensor:
        """Add positions to token embeddings: [b t d] → [b t d]."""
        return x

    def rotate(
        self, q: Float[Tensor, "b h t k"], k: Float[Tensor, "b g t k"], pos: Int[Tensor, "#b t"]
    ) -> tuple[Tensor, Tensor]:
        """Rotate queries and keys by their positions; g key heads may be fewer than h."""
        return q, k

    def bias(self, pos_q: Int[Tensor, "#b t"], pos_k: Int[Tensor, "#b s"]) -> Tensor | None:
        """Bias of the scores before the softmax, [b h t s] or [1 h t s]; None for no bias."""
        return None

    def content(
        self,
        q: Float[Tensor, "b h t k"],
        k: Float[Tensor, "b g s k"],
        visible: Bool[Tensor, "#b 1 t s"] | None,
    ) -> Tensor | None:
        """Bias [b h t s] of the scores q·k/√k by what queries and keys hold; None for no bias.

        Args:
            q: queries of the last t of the s tokens, rotated.
            k: keys of g heads, rotated, with those of a cache.
            visible: False where a query does not see a key; None for all.
        """
        return None


class Mixer(nn.Module):
    """Token mixer. Subclasses are constructed as `(site, parts, *, hyperparameters)`.

    Class attributes declare capabilities; the zoo table and the checks of a configuration read
    them.
    """

    component: ClassVar[str]  # name of the parameter group in optim.rates
    directions: ClassVar[frozenset[Direction]] = BOTH
    position_hooks: ClassVar[frozenset[Hook]] = frozenset({"embed"})  # position hooks that it uses
    forms: ClassVar[tuple[str, ...]] = ("parallel",)  # of parallel, chunkwise, recurrent
    documents: ClassVar[bool] = False  # whether tokens of other documents (`Context`) are not seen
    source: ClassVar[str] = ""  # SPEC id, paper
    cost: ClassVar[str] = ""  # of a forward pass in sequence length t (table only)
    state_size: ClassVar[str] = ""  # numbers in the decoding state, per sequence and layer
    max_positions: int | None = None  # largest number of positions; None for any

    def too_long(self, positions: int) -> str:
        """Why the mixer does not take so many positions; only called above `max_positions`."""
        return f"{type(self).__name__} has {self.max_positions} positions, not {positions}"

    @property
    def torch_draws(self) -> str:
        """Where torch's generator draws dropout, by micro-batch and process, not `Context.draws`.

        Empty for nowhere. A run prints it at its start; a module of any kind may have it.
        """
        return ""

    @property
    def flops_at_most(self) -> str:
        """Why the FLOPs counted from shapes are more than a pass on a CPU takes; empty if not.

        A run's record and `show` print it; a module of any kind may have it.
        """
        return ""

    def init_state(self, batch: int) -> Any:
        """Empty state for `batch` sequences; `forward` with this state is a prefill.

        Raises:
            UserError: the mixer has no form that decodes.
        """
        raise UserError(f"mixer={self.component} cannot decode: it has no init_state; write one")

    def reset_parameters(self) -> None:
        """Initialise weights that need special values; called after the default initialisation."""

    def forward(self, x: Tensor, ctx: Context, state: Any = None) -> Out:
        raise NotImplementedError


class FFN(nn.Module):
    """Feed-forward network on each token. Constructed as `(site, parts, *, hyperparameters)`."""

    component: ClassVar[str] = "ffn"
    source: ClassVar[str] = ""

    def reset_parameters(self) -> None:
        """Initialise weights that need special values; called after the default initialisation."""

    def forward(self, x: Tensor, ctx: Context) -> Out:
        raise NotImplementedError


def _no_grid(dim: int) -> nn.Module | None:
    """No activation grid: what a full-precision model has."""
    return None


@dataclass(frozen=True)
class Parts:
    """Factories of the chosen linear layer, norm and position, for constructors of components."""

    linear: Callable[..., Any]  # (d_in, d_out, *, bias: bool, role: Role)
    norm: Callable[[int], Norm]  # (dim)
    position: Callable[[Site, int, int], Position]  # (site, heads, head_dim)
    activation: Callable[[int], nn.Module | None] = _no_grid  # (dim) -> grid, or None


MixerFactory = Callable[[Site, Parts], Mixer]
FFNFactory = Callable[[Site, Parts], FFN]
