"""Rotary positions, with four scalings to longer texts (SPEC `rope`; SAIDL 2.3, TITAN eq. 12).

    q_m, k_n ← R_m q_m, R_n k_n,   R_m rotates pair i by m θ_i,   θ_i = base^(−2i/k)  (2104.09864)

Scores then depend on m − n only. Scalings for texts longer than the trained length L, factor s ≥ 1:
    linear       θ_i / s                                                            (2306.15595)
    ntk          base · s^(k/(k−2))                                        (NTK-aware, 2309.00071)
    dynamic_ntk  base · (s·n/L − (s − 1))^(k/(k−2)) if the sequence length n is above L
    yarn         θ_i if pair i makes more than `beta_fast` turns in L, θ_i / s if fewer than
                 `beta_slow`, a linear ramp between; q and k both times 0.1·ln s + 1, which lowers
                 the softmax temperature for longer texts                   (YaRN, 2309.00071)

With `dynamic`, s is n/L for a sequence longer than L and 1 otherwise. Training up to length L is
then equal to scaling=none (Dynamic Scaling, 2309.00071, 3.3). `dynamic` and `dynamic_ntk` rotate
all keys again when the sequence grows, but a cache has rotated keys already. Decoding beyond L
therefore differs from one full pass; other scalings decode exactly.
With `fraction` < 1 only the first fraction·k channels are rotated, with the frequencies of a head
of that width; the others carry no position (GPT-NeoX, arXiv 2204.06745; Qwen3-Next: a quarter).
q [b h t k], k [b g t k]; pairs are interleaved, see `chimera.ops.rotary`.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Ge, Gt, Le
from jaxtyping import Float, Int
from torch import Tensor

from chimera.contract import Hook, Position, PositiveFloat, PositiveInt, Site
from chimera.contract_gguf import GGUF, NotInGGUF
from chimera.ops.rotary import Base, angles, frequencies, rotate
from chimera.position.shared.of_transformers import OfLlama

#: Share of the channels of a head.
Share = Annotated[float, Gt(0), Le(1)]


class Rotary(OfLlama, Position):
    """Rotation of queries and keys by their positions (RoPE), with scaling to longer texts.

    Args:
        base: base of the frequencies, see above.
        scaling: scaling of positions beyond the trained length, see above.
        factor: s, ratio of the new to the trained length; ignored by `none` and with `dynamic`.
        dynamic: compute s from the length of each sequence; no effect on `dynamic_ntk`, which
            always does.
        original_len: the trained length L; None for the model's max_len.
        beta_fast, beta_slow: turns within L at which YaRN's ramp begins and ends.
        fraction: share of a head's channels that is rotated.

    Raises:
        ValueError: an odd width is rotated, or an NTK scaling has a width of 2.
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
        fraction: Share = 1.0,
    ) -> None:
        super().__init__(site, heads, head_dim)
        if head_dim % 2:
            raise ValueError(f"position=rope needs an even head width, not {head_dim}")
        self.head_width = head_dim
        head_dim = round(fraction * head_dim)
        if head_dim % 2 or not head_dim:
            line = f"position.fraction={fraction} rotates {head_dim} of {self.head_width} channels"
            raise ValueError(f"{line} of a head; the number has to be even, and 2 at least")
        if head_dim == 2 and scaling in {"ntk", "dynamic_ntk"}:
            raise ValueError(f"scaling={scaling} needs heads wider than 2; use linear or yarn")
        self.head_dim = head_dim
        self.base = base
        self.scaling = scaling
        self.factor = factor
        self.length = original_len or site.max_len
        self.dynamic = dynamic
        self.beta_fast = beta_fast
        self.beta_slow = beta_slow

    def rotate(
        self, q: Float[Tensor, "b h t k"], k: Float[Tensor, "b g t k"], pos: Int[Tensor, "#b t"]
    ) -> tuple[Tensor, Tensor]:
        cos, sin = angles(pos, self.frequencies(pos, q))
        if self.scaling == "yarn":
            temperature = 0.1 * self.stretch(pos, cos).log() + 1
            cos = cos * temperature
            sin = sin * temperature
        return rotate(q, cos, sin), rotate(k, cos, sin)

    def frequencies(self, pos: Int[Tensor, "#b t"], like: Tensor) -> Float[Tensor, "*#lead half"]:
        """θ in the precision of `like`: [half], or [b 1 1 half] if it depends on the sequence."""
        half = self.head_dim // 2
        exponent = self.head_dim / max(self.head_dim - 2, 1)
        if self.scaling == "none":
            return frequencies(half, self.base, like=like)
        if self.scaling == "ntk" and not self.dynamic:
            return frequencies(half, self.base * self.factor**exponent, like=like)
        theta = frequencies(half, self.base, like=like)
        stretch = self.stretch(pos, theta)
        if self.scaling == "linear":
            return theta / stretch
        if self.scaling == "yarn":
            ramp = self._ramp(theta)
            return theta * ramp + theta / stretch * (1 - ramp)
        return theta * stretch ** (-exponent * torch.arange(half, device=pos.device) / half)

    def stretch(self, pos: Int[Tensor, "#b t"], like: Tensor) -> Float[Tensor, "*#b"]:
        """s in the precision of `like`: [], or [b 1 1 1] if it depends on the sequence."""
        if not self.dynamic and self.scaling != "dynamic_ntk":
            return like.new_tensor(self.factor)
        # Per sequence: other sequences of the batch must not change a result.
        ratio = (pos.amax(-1) + 1).to(like.dtype)[:, None, None, None] / self.length
        if self.scaling == "dynamic_ntk":
            ratio = self.factor * ratio - (self.factor - 1)
        return ratio.clamp(min=1)

    def gguf(self) -> GGUF:
        """As llama.cpp's rotation, with factors that do not depend on the text's length."""
        if self.head_dim != self.head_width:
            raise NotInGGUF("position", "fraction below 1")
        base = self.base
        keys = {"rope.dimension_count": self.head_dim}
        if self.scaling != "none" and (self.dynamic or self.scaling not in {"linear", "ntk"}):
            how = " with dynamic=true" if self.dynamic else ""
            raise NotInGGUF("position", f"scaling={self.scaling}{how}")
        if self.scaling == "ntk":
            base *= self.factor ** (self.head_dim / (self.head_dim - 2))
        more: dict[str, Any] = {"rope.freq_base": base}
        if self.scaling == "linear":
            more |= {"rope.scaling.type": "linear", "rope.scaling.factor": self.factor}
        return GGUF(keys=keys | more)

    def _ramp(self, theta: Float[Tensor, " half"]) -> Float[Tensor, " half"]:
        """YaRN's ramp: 1 for pairs with many turns within the trained length, 0 for few turns."""

        def pair(turns: float) -> float:
            bound = math.log(self.length / (turns * 2 * math.pi)) / math.log(self.base)
            return self.head_dim / 2 * bound

        low = max(math.floor(pair(self.beta_fast)), 0)
        high = min(math.ceil(pair(self.beta_slow)), self.head_dim - 1)
        width = high - low if high != low else 0.001  # avoids division by 0
        index = torch.arange(len(theta), device=theta.device, dtype=theta.dtype)
        return 1 - ((index - low) / width).clamp(0, 1)
