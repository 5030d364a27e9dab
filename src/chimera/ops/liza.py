"""The linear branch of LiZAttention (SPEC M12, E6; TPTT 3.1, 3.3.2), on any attention's q, k, v.

    q, k, v ← unit(SiLU(q, k, v))                                                      (eq. 4)
    x⁽ᵐ⁾_t = 2⁻ᵐ Σ_j (−1)ʲ C(m, j) x_{t−j}        derivative, x = k, v, m = 0 … order−1  (eq. 22)
    x⁽ᵐ⁾_t = R(2πm/order) x_t                     rotary, R turns pairs of channels      (eq. 23)
    β_k, β_v = σ(mean of the last three k⁽ᵐ⁾, v⁽ᵐ⁾)   per channel; β is one or β_k ⊙ β_v   (eq. 5)
    y = RMSNorm(delta rule (q; k⁽⁰⁾, k⁽¹⁾ …; v⁽⁰⁾, v⁽¹⁾ …; β⁽⁰⁾, β⁽¹⁾ …))                  (eq. 6)
    h ← φ(h) after each `chunk` tokens of the sequence, by option                      (eq. 24)

Left open by the paper, and decided here:

- Z_m = 2ᵐ, the sum of the binomials: ‖x⁽ᵐ⁾‖ ≤ 1 like x, and no division by a difference that is
  near zero where tokens repeat. The differences are taken one from the other:
  x⁽ᵐ⁾_t = (x⁽ᵐ⁻¹⁾_t − x⁽ᵐ⁻¹⁾_{t−1})/2. Before the sequence all is zero, in the mean of β too.
- `both` is the mean of the two: applied one after the other they would, at order 2, differ from the
  derivative by a sign of k and v, which the rule does not see.
- β of virtual tokens comes from virtual keys and values, which is the trick applied before the
  sigmoid (the mean and the tricks are linear); after it β would be negative.
- A β per channel enters as eq. 14-15 write it, see `ops.delta`; the transition is then oblique and
  may stretch. β from normalised keys is near 1/2 in all channels, so that it hardly does: keys and
  values sought by gradient ascent stretched a state 3.5-fold in 200 tokens (raw keys 110 in 60).
- q is not expanded: a token reads once, after its last step.
- Both ways: one pass over the sequence and one over its mirror image are added, then normalised.

q [b h t k], k and v [b g t k], before any rotation by position; g divides h.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from chimera.ops import delta
from chimera.ops.rotary import rotate

Trick = Literal["none", "derivative", "rotary", "both"]
Gate = Literal["k", "v", "kv"]
Nonlinearity = Literal["none", "gelu", "tanh"]

#: Tokens in the mean that β is made of.
POOL = 3
#: Added to the mean square by the norm that ends the branch.
EPS = 1e-6


class LinearState(NamedTuple):
    """Memory, the last normalised keys and values, tokens since the last chunk ended."""

    memory: Float[Tensor, "b g k k"]
    k: Float[Tensor, "b g tail k"]
    v: Float[Tensor, "b g tail k"]
    since: Int[Tensor, " b"]


@dataclass(frozen=True, kw_only=True)
class LinearBranch:
    """DeltaProduct over the queries, keys and values of a softmax attention.

    It holds options and no parameters: the one that the branch has, the weight of its norm, is an
    argument and belongs to the module that calls it.

    Args:
        head_dim: k, the width of a head.
        order: virtual tokens per token, n_h.
        trick: what they are made by.
        gate: what β comes from.
        nonlinearity: φ.
        chunk: tokens between two applications of φ, counted from the start of the sequence;
            without φ of no effect.
    """

    head_dim: int
    order: int = 2
    trick: Trick = "derivative"
    gate: Gate = "k"
    nonlinearity: Nonlinearity = "none"
    chunk: int = 64

    def __post_init__(self) -> None:
        if self.trick == "none" and self.order > 1:
            raise ValueError(
                f"order={self.order} needs virtual tokens; trick=none makes none:"
                " use trick=derivative, rotary or both, or order=1"
            )
        if self.turns and self.head_dim % 2:
            raise ValueError(
                f"trick={self.trick} turns pairs of channels; a head has {self.head_dim}"
            )

    @property
    def differs(self) -> bool:
        """Whether virtual tokens are differences in time."""
        return self.trick in ("derivative", "both")

    @property
    def turns(self) -> bool:
        """Whether virtual tokens are rotations."""
        return self.trick in ("rotary", "both")

    @property
    def phi(self) -> Callable[[Tensor], Tensor] | None:
        """φ; None for the identity."""
        return {"none": None, "gelu": F.gelu, "tanh": torch.tanh}[self.nonlinearity]

    def init_state(self, batch: int, heads: int, like: Tensor) -> LinearState:
        """Nothing seen yet: `heads` key-value heads, on the device of `like`, float32 at least."""
        wide = torch.promote_types(like.dtype, torch.float32)
        tail = like.new_zeros(batch, heads, self.order + POOL - 2, self.head_dim, dtype=wide)
        memory = like.new_zeros(batch, heads, self.head_dim, self.head_dim, dtype=wide)
        return LinearState(
            memory, tail, tail, torch.zeros(batch, dtype=torch.long, device=like.device)
        )

    def __call__(
        self,
        q: Float[Tensor, "b h t k"],
        k: Float[Tensor, "b g t k"],
        v: Float[Tensor, "b g t k"],
        weight: Float[Tensor, " k"],
        mask: Bool[Tensor, "b t"] | None = None,
        state: LinearState | None = None,
        *,
        causal: bool = True,
    ) -> tuple[Float[Tensor, "b h t k"], LinearState | None]:
        """The branch's output, before the output projection, and the state.

        Args:
            q, k, v: as the projections give them, not yet rotated.
            weight: of the RMSNorm that ends the branch; ones at the start.
            mask: True for real tokens, and these first (`ops.local.Aligned` puts them there).
            state: None for a sequence of its own, and then none is returned.
            causal: False adds a pass over the mirror image.
        """
        if state is not None and not causal:
            raise ValueError("both ways there is no state to continue from")
        dtype = v.dtype
        q, k, v = (delta.unit(F.silu(x)) for x in (q, k, v))
        if causal:
            y, state = self.read(q, k, v, mask, state)
        else:
            turn = _mirror(q, mask)
            y = self.read(q, k, v, mask)[0]
            y = y + turn(self.read(turn(q), turn(k), turn(v), mask)[0])
        return F.rms_norm(y.to(weight.dtype), weight.shape, weight, EPS).to(dtype), state

    def read(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, state: LinearState | None = None
    ) -> tuple[Tensor, LinearState | None]:
        """One pass of the delta rule over normalised q, k, v. Arguments as for `__call__`."""
        past = self.init_state(k.shape[0], k.shape[1], k) if state is None else state
        k, v = torch.cat([past.k, k], 2), torch.cat([past.v, v], 2)
        keys, values = self.virtual(k), self.virtual(v)
        gates = [_pool(x).sigmoid() for x, n in ((keys, "k"), (values, "v")) if n in self.gate]
        beta = math.prod(gates[1:], start=gates[0])
        keys, values = keys[:, :, POOL - 1 :], values[:, :, POOL - 1 :]
        beta, _ = delta.masked(beta, None, mask)
        memory = None if state is None else state.memory
        since = past.since
        if self.phi is not None:
            y, memory, since = self.chunked(q, keys, values, beta, mask, memory, since)
        elif memory is not None and q.shape[2] == 1:
            y, memory = delta.step(q, keys, values, beta, None, memory)
        else:
            y, memory = delta.chunkwise(q, keys, values, beta, None, memory)
        if memory is None:
            return y, None
        tail = past.k.shape[2]
        return y, LinearState(memory, _last(k, tail, mask), _last(v, tail, mask), since)

    def virtual(self, x: Float[Tensor, "b g s k"]) -> Float[Tensor, "b g t n k"]:
        """Each token's virtual ones. The first order−1 places of x are only looked back at."""
        tokens = x.shape[2] - self.order + 1
        differences = [x]
        for _ in range(self.order - 1):
            x = (x[:, :, 1:] - x[:, :, :-1]) / 2
            differences.append(x)
        differences = [d[:, :, d.shape[2] - tokens :] for d in differences]
        x = differences[0]
        if not self.turns:
            return torch.stack(differences if self.differs else [x], 3)
        angles = (2 * math.pi * m / self.order for m in range(self.order))
        shape = (x.shape[0], 1, x.shape[2], 1)
        turned = [
            rotate(x, x.new_full(shape, math.cos(a)), x.new_full(shape, math.sin(a)))
            for a in angles
        ]
        if self.differs:
            turned = [(r + d) / 2 for r, d in zip(turned, differences, strict=True)]
        return torch.stack(turned, 3)

    def chunked(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        beta: Tensor,
        mask: Tensor | None,
        memory: Tensor | None,
        since: Int[Tensor, " b"],
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """The delta rule with φ between chunks; sequences may be at different places in theirs."""
        phi = self.phi
        assert phi is not None
        tokens = q.shape[2]
        total = since + (tokens if mask is None else mask.sum(1))

        def between(h: Tensor, c: int) -> Tensor:
            return torch.where((total >= (c + 1) * self.chunk)[:, None, None, None], phi(h), h)

        if memory is not None and tokens == 1:
            y, memory = delta.step(q, k, v, beta, None, memory)
            memory = between(memory, 0)
        elif memory is None:
            y, _ = delta.chunkwise(q, k, v, beta, chunk=self.chunk, between=between)
        else:
            # Tokens move right by what their sequence already has of a chunk.
            width = tokens + self.chunk - 1
            places = torch.arange(width, device=q.device) - since[:, None]
            real = (places >= 0) & (places < tokens)
            places = places.clamp(0, tokens - 1)
            q, k, v, beta = (_take(x, places) for x in (q, k, v, beta))
            beta, _ = delta.masked(beta, None, real)
            y, memory = delta.chunkwise(
                q, k, v, beta, None, memory, chunk=self.chunk, between=between
            )
            y = _take(y, torch.arange(tokens, device=q.device) + since[:, None])
        return y, memory, total % self.chunk


def _pool(x: Float[Tensor, "b g s n k"]) -> Float[Tensor, "b g t n k"]:
    """The mean over each token and the two before it; the first two are only looked back at."""
    tokens = x.shape[2] - POOL + 1
    return sum((x[:, :, i : i + tokens] for i in range(1, POOL)), x[:, :, :tokens]) / POOL


def _take(x: Float[Tensor, "b h t *k"], places: Int[Tensor, "#b s"]) -> Float[Tensor, "b h s *k"]:
    """x at the `places` of each sequence."""
    return x.take_along_dim(places.reshape(len(places), 1, -1, *(1,) * (x.ndim - 3)), 2)


def _last(x: Tensor, count: int, mask: Bool[Tensor, "b t"] | None) -> Tensor:
    """The last `count` real ones of x, which begins with as many that came before the mask."""
    if mask is None:
        return x[:, :, x.shape[2] - count :].clone()  # or it would keep all of x alive
    return _take(x, mask.sum(1, keepdim=True) + torch.arange(count, device=x.device))


def _mirror(x: Tensor, mask: Bool[Tensor, "b t"] | None) -> Callable[[Tensor], Tensor]:
    """Turns the real tokens of each sequence around; padding, which is last, stays."""
    if mask is None:
        return lambda x: x.flip(2)
    place = torch.arange(x.shape[2], device=x.device)
    mirrored = mask.sum(1, keepdim=True) - 1 - place
    return lambda x: _take(x, mirrored.where(mirrored >= 0, place))
