"""Rotary positions, and four ways to stretch them (SPEC `rope`; SAIDL 2.3, TITAN eq. 12).

    q_m, k_n ← R_m q_m, R_n k_n,   pair i of R_m turns by m θ_i,   θ_i = base^(−2i/k)  (2104.09864)

so that scores see m − n alone. Beyond the trained length L, with factor s ≥ 1:
    linear       θ_i / s                                                            (2306.15595)
    ntk          base · s^(k/(k−2))                                        (NTK-aware, 2309.00071)
    dynamic_ntk  base · (s·n/L − (s − 1))^(k/(k−2)) where the sequence's length n is above L
    yarn         θ_i where pair i makes more than `beta_fast` turns in L, θ_i / s where it makes
                 fewer than `beta_slow`, a ramp between; q and k both times 0.1·ln s + 1, which is
                 a lower softmax temperature for longer texts               (YaRN, 2309.00071)

With `dynamic`, s is n/L where a sequence is longer than L, else 1: up to L nothing is changed, so
that it is trained as `none` is (Dynamic Scaling, 2309.00071, 3.3). It and `dynamic_ntk` turn all
keys again whenever the sequence grows. A cache of turned keys cannot, so decoding past L differs
from one full pass; the others decode exactly.
q [b h t k], k [b g t k]; pairs are interleaved, see `chimera.ops.rotary`.
"""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge
from jaxtyping import Float, Int
from torch import Tensor

from chimera.contract import Hook, Position, PositiveFloat, PositiveInt, Site
from chimera.ops.rotary import Base, angles, frequencies, rotate


class Rotary(Position):
    """Rotation of queries and keys by their positions (RoPE), with scaling to longer texts.

    Args:
        base: see above.
        scaling: how positions beyond the trained length are brought in.
        factor: s, by how much the trained length is stretched; unused by `none` and if `dynamic`.
        dynamic: stretch each sequence by as much as it is longer; `dynamic_ntk` has its own way.
        original_len: the trained length L; None takes the model's max_len.
        beta_fast, beta_slow: turns within L at which YaRN's ramp begins and ends.
    """

    provides: ClassVar[frozenset[Hook]] = frozenset({"rotate"})

    def __init__(
        self,
        site: Site,
        heads: int,
        head_dim: int,
        *,
        base: Base = 10000.0,
        scaling: Literal["none", "linear", "ntk", "dynamic_ntk", "yarn"] = "none",
        factor: Annotated[float, Ge(1)] = 4.0,
        dynamic: bool = False,
        original_len: PositiveInt | None = None,
        beta_fast: PositiveFloat = 32.0,
        beta_slow: PositiveFloat = 1.0,
    ) -> None:
        super().__init__(site, heads, head_dim)
        if head_dim % 2:
            raise ValueError(f"a rotation turns pairs, but heads are {head_dim} wide, an odd width")
        if head_dim == 2 and scaling in {"ntk", "dynamic_ntk"}:
            raise ValueError(f"scaling={scaling} needs heads wider than 2; use linear or yarn")
        self.head_dim, self.base, self.scaling, self.factor = head_dim, base, scaling, factor
        self.length, self.dynamic = original_len or site.max_len, dynamic
        self.beta_fast, self.beta_slow = beta_fast, beta_slow

    def rotate(
        self, q: Float[Tensor, "b h t k"], k: Float[Tensor, "b g t k"], pos: Int[Tensor, "#b t"]
    ) -> tuple[Tensor, Tensor]:
        cos, sin = angles(pos, self.frequencies(pos, q))
        if self.scaling == "yarn":
            temperature = 0.1 * self.stretch(pos, cos).log() + 1
            cos, sin = cos * temperature, sin * temperature
        return rotate(q, cos, sin), rotate(k, cos, sin)

    def frequencies(self, pos: Int[Tensor, "#b t"], like: Tensor) -> Float[Tensor, "*#lead half"]:
        """θ in the precision of `like`; [b 1 1 half] where it depends on the sequence."""
        half, exponent = self.head_dim // 2, self.head_dim / max(self.head_dim - 2, 1)
        if self.scaling == "none":
            return frequencies(half, self.base, like=like)
        if self.scaling == "ntk" and not self.dynamic:
            return frequencies(half, self.base * self.factor**exponent, like=like)
        theta = frequencies(half, self.base, like=like)
        stretch = self.stretch(pos, theta)
        if self.scaling == "linear":
            return theta / stretch
        if self.scaling == "yarn":
            kept = self._ramp(theta)
            return theta * kept + theta / stretch * (1 - kept)
        return theta * stretch ** (-exponent * torch.arange(half, device=pos.device) / half)

    def stretch(self, pos: Int[Tensor, "#b t"], like: Tensor) -> Float[Tensor, "*#b"]:
        """s in the precision of `like`; [b 1 1 1] where it depends on the sequence."""
        if not self.dynamic and self.scaling != "dynamic_ntk":
            return like.new_tensor(self.factor)
        # Per sequence, not the longest of the batch: its neighbours must not change a result.
        times = (pos.amax(-1) + 1).to(like.dtype)[:, None, None, None] / self.length
        if self.scaling == "dynamic_ntk":
            times = self.factor * times - (self.factor - 1)
        return times.clamp(min=1)

    def _ramp(self, theta: Float[Tensor, " half"]) -> Float[Tensor, " half"]:
        """1 for the pairs that turn often within the trained length, 0 for those that hardly do."""

        def pair(turns: float) -> float:
            bound = math.log(self.length / (turns * 2 * math.pi)) / math.log(self.base)
            return self.head_dim / 2 * bound

        low = max(math.floor(pair(self.beta_fast)), 0)
        high = min(math.ceil(pair(self.beta_slow)), self.head_dim - 1)
        width = high - low if high != low else 0.001  # a step, not a division by nothing
        index = torch.arange(len(theta), device=theta.device, dtype=theta.dtype)
        return 1 - ((index - low) / width).clamp(0, 1)
