"""Linear branch of LiZAttention, on q, k, v of any attention (SPEC M12, E6; TPTT 3.1, 3.3.2).

    q, k, v ← unit(SiLU(q, k, v))                                                      (eq. 4)
    x⁽ᵐ⁾_t = 2⁻ᵐ Σ_j (−1)ʲ C(m, j) x_{t−j}        derivative, x = k, v, m = 0 … order−1  (eq. 22)
    x⁽ᵐ⁾_t = R(2πm/order) x_t                     rotary, R turns pairs of channels      (eq. 23)
    β_k, β_v = σ(mean of the last `pool` k⁽ᵐ⁾, v⁽ᵐ⁾)   per channel; β is one or β_k ⊙ β_v  (eq. 5)
    O = (1−α) O_base + α y  (+ (1−α) O_base ⊙ α y),   α_h = σ(logit α + s_h)           (eq. 7, 8)
    y = RMSNorm(delta rule (q; k⁽⁰⁾, k⁽¹⁾ …; v⁽⁰⁾, v⁽¹⁾ …; β⁽⁰⁾, β⁽¹⁾ …))                  (eq. 6)
    h ← φ(h) after each `chunk` tokens of the sequence, optional                       (eq. 24)

Decisions on points that the paper leaves open:

- Z_m = 2ᵐ, the sum of the binomials. Then ‖x⁽ᵐ⁾‖ ≤ 1, as for x, and no division by a difference
  near zero occurs when tokens repeat. Differences are computed recursively:
  x⁽ᵐ⁾_t = (x⁽ᵐ⁻¹⁾_t − x⁽ᵐ⁻¹⁾_{t−1})/2. Values before the sequence are zero, in the mean of β too.
- `both` is the mean of derivative and rotary. Applying both in sequence at order 2 would differ
  from the derivative only by the sign of k and v, which does not change the delta rule.
- β of virtual tokens comes from virtual keys and values: the trick is applied before the sigmoid
  (mean and tricks are linear). Applied after the sigmoid, it would make β negative.
- Of three normalised keys β is nearly constant, 0.505 ± 0.014 over tokens and channels.
  `gate_input: projected` takes k and v before SiLU and norm. Training logs β's mean and deviation.
- β per channel follows eq. 14-15, see `ops.delta`. The transition is then oblique and may enlarge
  the state (SPEC E12: the spectral norm of a step is up to 1.13). β from normalised keys is near
  1/2 in all channels, so that the growth is small: keys and values found by gradient ascent
  enlarged a state 3.5-fold in 200 tokens (raw keys: 110-fold in 60 tokens). `beta: scalar`, the
  word of Table 1, is σ of the mean over the channels: a step is then a contraction, as in eq. 9.
- Eq. 5 means over all earlier tokens (`pool: all`), the authors' package over three (SPEC E13).
- The normaliser q·z of eq. 3 is left out: the RMSNorm of eq. 6 removes it but for its sign.
- q has no virtual tokens: a token reads once, after its last step.
- Bidirectional: outputs of one pass and of one over the reversal are added, then normalised.

Shapes: q [b h t k]; k, v [b g t k], before rotation by positions; g divides h.
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
from chimera.ops.numberless import numberless
from chimera.ops.rotary import rotate

Trick = Literal["none", "derivative", "rotary", "both"]
Gate = Literal["k", "v", "kv"]
Nonlinearity = Literal["none", "gelu", "tanh"]

GateInput = Literal["normalised", "projected"]
Beta = Literal["scalar"]

#: Factor of the learning rate for what is learned of α: a logit, which has to move by units.
LEARN_RATE = 20.0
#: ε of the final RMSNorm.
EPS = 1e-6


class LinearState(NamedTuple):
    """Delta-rule state, last keys and values, tokens of the current chunk, sums of `pool: all`."""

    memory: Float[Tensor, "b g k k"]
    k: Float[Tensor, "b g tail k"]
    v: Float[Tensor, "b g tail k"]
    in_chunk: Int[Tensor, " b"]
    sums: Float[Tensor, "b g gates n k"]
    seen: Int[Tensor, " b"]


@dataclass(frozen=True, kw_only=True)
class LinearBranch:
    """DeltaProduct on the queries, keys and values of a softmax attention.

    Has options and no parameters: the calling module owns the weight of the norm and passes it.

    Args:
        head_dim: k, width of a head.
        order: n_h, number of virtual tokens per token.
        trick: operation that makes virtual tokens.
        gate: source of β: keys, values, or their product.
        gate_input: keys and values of β as the memory gets them, or as they were projected.
        pool: number of tokens whose mean gives β; `all` for all so far.
        beta: `scalar` for one β a head; None for one per channel.
        nonlinearity: φ.
        chunk: tokens between two applications of φ, counted from the start of the sequence; no
            effect without φ.

    Raises:
        ValueError: trick=none with order > 1, or rotations of an odd head width.
    """

    head_dim: int
    order: int = 2
    trick: Trick = "derivative"
    gate: Gate = "k"
    gate_input: GateInput = "normalised"
    pool: int | Literal["all"] = 3
    beta: Beta | None = None
    nonlinearity: Nonlinearity = "none"
    chunk: int = 64

    def __post_init__(self) -> None:
        if self.trick == "none" and self.order > 1:
            raise ValueError(
                f"order={self.order} needs virtual tokens, but trick=none makes none:"
                " use trick=derivative, rotary or both, or order=1"
            )
        if self.uses_rotations and self.head_dim % 2:
            raise ValueError(
                f"trick={self.trick} rotates pairs of channels, but a head has {self.head_dim}:"
                " use trick=derivative, or an even head width"
            )

    @property
    def context(self) -> int:
        """Tokens before the first whose keys and values its β needs."""
        return 0 if self.pool == "all" else self.pool - 1

    @property
    def uses_differences(self) -> bool:
        """True if virtual tokens include differences in time."""
        return self.trick in ("derivative", "both")

    @property
    def uses_rotations(self) -> bool:
        """True if virtual tokens include rotations."""
        return self.trick in ("rotary", "both")

    @property
    def phi(self) -> Callable[[Tensor], Tensor] | None:
        """Function φ; None for the identity."""
        return {"none": None, "gelu": F.gelu, "tanh": torch.tanh}[self.nonlinearity]

    def init_state(self, batch: int, heads: int, like: Tensor) -> LinearState:
        """Zero state of `heads` key-value heads, on the device of `like`, in float32 or wider."""
        wide = torch.promote_types(like.dtype, torch.float32)
        width = self.head_dim * (2 if self.gate_input == "projected" else 1)
        tail = like.new_zeros(batch, heads, self.order - 1 + self.context, width, dtype=wide)
        memory = like.new_zeros(batch, heads, self.head_dim, self.head_dim, dtype=wide)
        gates = len(self.gate) if self.pool == "all" else 0
        sums = like.new_zeros(batch, heads, gates, self.order, self.head_dim, dtype=wide)
        none = torch.zeros(batch, dtype=torch.long, device=like.device)
        return LinearState(memory, tail, tail, none, sums, none)

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
        stats: dict[str, Tensor] | None = None,
    ) -> tuple[Float[Tensor, "b h t k"], LinearState | None]:
        """Output of the branch before the output projection, and the new state.

        Args:
            q, k, v: projected queries, keys and values, before rotation.
            weight: weight of the final RMSNorm, initialised to ones.
            mask: True for real tokens, which come first (see `ops.local.Aligned`).
            state: state before the first token. None: zeros, and no state is returned.
            causal: False adds a pass over the reversed sequence.
            stats: gets `beta_mean` and `beta_std` over real tokens, virtual tokens and channels.

        Raises:
            ValueError: a state with causal=False.
        """
        if state is not None and not causal:
            raise ValueError("causal=False takes no state: pass state=None, or causal=True")
        dtype = v.dtype
        raw = (k, v)
        q, k, v = (delta.unit(F.silu(x)) for x in (q, k, v))
        if self.gate_input == "projected":  # both go the same way through the states
            k, v = (torch.cat([x, y.to(x.dtype)], -1) for x, y in zip((k, v), raw, strict=True))
        if causal:
            y, state = self.one_pass(q, k, v, mask, state, stats)
        else:
            flip = _reversal(q, mask)
            y = self.one_pass(q, k, v, mask, None, stats)[0]
            y = y + flip(self.one_pass(flip(q), flip(k), flip(v), mask)[0])
        return F.rms_norm(y.to(weight.dtype), weight.shape, weight, EPS).to(dtype), state

    def one_pass(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None,
        state: LinearState | None = None, stats: dict[str, Tensor] | None = None,
    ) -> tuple[Tensor, LinearState | None]:  # fmt: skip
        """Causal delta rule; k and v [… 2k] have both forms with gate_input=projected."""
        past = self.init_state(k.shape[0], k.shape[1], k) if state is None else state
        k, v = torch.cat([past.k, k], 2), torch.cat([past.v, v], 2)
        keys, values = (self.virtual(x[..., : self.head_dim]) for x in (k, v))
        gated = {"k": keys, "v": values}
        if self.gate_input == "projected":
            gated = {n: self.virtual(x[..., self.head_dim :]) for n, x in (("k", k), ("v", v))}
        pooled, sums = self._pool([gated[name] for name in self.gate], past, mask)
        if self.beta == "scalar":
            pooled = [x.mean(-1, keepdim=True) for x in pooled]
        gates = [x.sigmoid() for x in pooled]
        beta = math.prod(gates[1:], start=gates[0])
        if stats is not None:
            stats |= _spread(beta.detach(), mask)
        keys, values = keys[:, :, self.context :], values[:, :, self.context :]
        beta, _ = delta.masked(beta, None, mask)
        memory = None if state is None else state.memory
        in_chunk = past.in_chunk
        if self.phi is not None:
            y, memory, in_chunk = self.chunked(q, keys, values, beta, mask, memory, in_chunk)
        elif memory is not None and q.shape[2] == 1:
            y, memory = delta.step(q, keys, values, beta, None, memory)
        else:
            y, memory = delta.chunkwise(q, keys, values, beta, None, memory)
        if memory is None:
            return y, None
        tail = past.k.shape[2]
        seen = past.seen + (q.shape[2] if mask is None else mask.sum(1))
        return y, LinearState(
            memory, _last(k, tail, mask), _last(v, tail, mask), in_chunk, sums, seen
        )

    def virtual(self, x: Float[Tensor, "b g s k"]) -> Float[Tensor, "b g t n k"]:
        """Virtual tokens of each token; the first order−1 places of x are context only."""
        tokens = x.shape[2] - self.order + 1
        differences = [x]
        for _ in range(self.order - 1):
            x = (x[:, :, 1:] - x[:, :, :-1]) / 2
            differences.append(x)
        differences = [d[:, :, d.shape[2] - tokens :] for d in differences]
        x = differences[0]
        if not self.uses_rotations:
            return torch.stack(differences if self.uses_differences else [x], 3)
        angles = (2 * math.pi * m / self.order for m in range(self.order))
        shape = (x.shape[0], 1, x.shape[2], x.shape[3] // 2)
        rotated = [
            rotate(x, x.new_full(shape, math.cos(a)), x.new_full(shape, math.sin(a)))
            for a in angles
        ]
        if self.uses_differences:
            rotated = [(r + d) / 2 for r, d in zip(rotated, differences, strict=True)]
        return torch.stack(rotated, 3)

    def _pool(
        self,
        inputs: list[Float[Tensor, "b g s n k"]],
        past: LinearState,
        mask: Bool[Tensor, "b t"] | None,
    ) -> tuple[list[Float[Tensor, "b g t n k"]], Tensor]:
        """Means over each token and those before it, of each input of β, and their new sums."""
        if self.pool == "all":
            x = torch.stack(inputs, 2)
            if mask is not None:
                x = x * mask[:, None, None, :, None, None]
            sums = past.sums[:, :, :, None] + x.cumsum(3)
            places = past.seen[:, None] + torch.arange(1, x.shape[3] + 1, device=x.device)
            means = sums / places[:, None, None, :, None, None]
            return list(means.unbind(2)), sums[:, :, :, -1].clone()
        tokens = inputs[0].shape[2] - self.context  # the first places are context only
        pooled = []
        for x in inputs:
            parts = (x[:, :, i : i + tokens] for i in range(1, self.pool))
            pooled.append(sum(parts, x[:, :, :tokens]) / self.pool)
        return pooled, past.sums

    def chunked(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        beta: Tensor,
        mask: Tensor | None,
        memory: Tensor | None,
        in_chunk: Int[Tensor, " b"],
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """Delta rule with φ between chunks; `in_chunk` may differ between sequences."""
        phi = self.phi
        assert phi is not None
        tokens = q.shape[2]
        total = in_chunk + (tokens if mask is None else mask.sum(1))

        def between(h: Tensor, c: int) -> Tensor:
            return torch.where((total >= (c + 1) * self.chunk)[:, None, None, None], phi(h), h)

        if memory is not None and tokens == 1:
            y, memory = delta.step(q, k, v, beta, None, memory)
            memory = between(memory, 0)
        elif memory is None:
            y, _ = delta.chunkwise(q, k, v, beta, chunk=self.chunk, between=between)
        else:
            # Shift each sequence right by its `in_chunk`, so that all chunks end together.
            width = tokens + self.chunk - 1
            places = torch.arange(width, device=q.device) - in_chunk[:, None]
            real = (places >= 0) & (places < tokens)
            places = places.clamp(0, tokens - 1)
            q, k, v, beta = (_take(x, places) for x in (q, k, v, beta))
            beta, _ = delta.masked(beta, None, real)
            y, memory = delta.chunkwise(
                q, k, v, beta, None, memory, chunk=self.chunk, between=between
            )
            y = _take(y, torch.arange(tokens, device=q.device) + in_chunk[:, None])
        return y, memory, total % self.chunk


def _spread(
    beta: Float[Tensor, "b g t n k"], mask: Bool[Tensor, "b t"] | None
) -> dict[str, Tensor]:
    """Mean and standard deviation of β over the real tokens."""
    if mask is None:
        return {"beta_mean": beta.mean(), "beta_std": beta.std(correction=0)}
    real = mask[:, None, :, None, None].to(beta.dtype)
    share = real / (mask.sum().clamp(min=1) * beta.shape[1] * math.prod(beta.shape[3:]))
    mean = (beta * share).sum()
    return {"beta_mean": mean, "beta_std": ((beta - mean).square() * share).sum().sqrt()}


def _take(x: Float[Tensor, "b h t *k"], places: Int[Tensor, "#b s"]) -> Float[Tensor, "b h s *k"]:
    """Gather tokens of x at the `places` of each sequence."""
    return x.take_along_dim(places.reshape(len(places), 1, -1, *(1,) * (x.ndim - 3)), 2)


def _last(x: Tensor, count: int, mask: Bool[Tensor, "b t"] | None) -> Tensor:
    """Last `count` real tokens of x; `mask` does not cover the first `count` tokens of x."""
    if mask is None:
        return x[:, :, x.shape[2] - count :].clone()  # a view would keep all of x in memory
    return _take(x, mask.sum(1, keepdim=True) + torch.arange(count, device=x.device))


def _reversal(x: Tensor, mask: Bool[Tensor, "b t"] | None) -> Callable[[Tensor], Tensor]:
    """Function that reverses the real tokens of each sequence and leaves padding at the end."""
    if mask is None:
        return lambda x: x.flip(2)
    place = torch.arange(x.shape[2], device=x.device)
    mirrored = mask.sum(1, keepdim=True) - 1 - place
    return lambda x: _take(x, mirrored.where(mirrored >= 0, place))


def mix(
    base: Float[Tensor, "*b"],
    lin: Float[Tensor, "*b"],
    weight: Float[Tensor, ""],
    shift: Float[Tensor, "*#b"] | None,
    *,
    cross: bool,
) -> Float[Tensor, "*b"]:
    """Both branches mixed (eq. 7; with `cross` eq. 8).

    Args:
        base, lin: outputs of softmax attention and of the linear branch.
        weight: α.
        shift: what is learned of α, s; α stays 0 and 1 where it is. None: nothing.
        cross: add the product of both terms.
    """
    if shift is not None:
        odds = weight * shift.exp()
        weight = (odds / (odds + 1 - weight)).to(base.dtype)
    base, lin = (1 - weight) * base, weight * lin
    return base + lin + base * lin if cross else base + lin


class Edge:
    """α where it is 0 or 1, so that one branch alone is read; asks the device when α has changed.

    Args:
        weight: the tensor of α.
        value: α, as the caller knows it.
    """

    def __init__(self, weight: Float[Tensor, ""], value: float) -> None:
        self.known = (weight, _version(weight))
        self.value = value

    def of(self, weight: Float[Tensor, ""]) -> float | None:
        """0, 1, or None; None also where nobody may look."""
        capturing = weight.is_cuda and torch.cuda.is_current_stream_capturing()
        if numberless(weight) or capturing or torch.compiler.is_compiling():
            return None
        if self.known[0] is not weight or self.known[1] != _version(weight):
            self.known = (weight, _version(weight))
            self.value = float(weight)
        return self.value if self.value in (0.0, 1.0) else None


def _version(x: Tensor) -> int:
    """Number of changes in place; tensors of inference mode have none."""
    return -1 if x.is_inference() else x._version
