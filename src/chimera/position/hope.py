"""HOPE, Hyperspherical Orbit Positional Embedding (SPEC P1; TITAN 3.3, eq. 18-19).

    q_m ← r_h (R_m q_m)/‖q_m‖,   k_n ← √k (R_n k_n)/‖k_n‖,   R as in rope

TITAN rotates and then «applies additional spherical projections», without a formula. In this code,
queries and keys are rotated and projected on a hypersphere. A score q·k/√k then equals
r_h·cos∠(q, k), which is bounded for any text length. r_h > 0 is learned per head, as log r_h; its
initial value is √k, the usual norm of a query. The radius of keys is constant, because a score
depends only on the product of both radii, and because grouped keys have fewer heads. Retention
norms each head after its scores, so no radius has an effect there; `radius_group=mixer` keeps it
constant.
q [b h t k], k [b g t k].
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from chimera.contract import Hook, Position, Site
from chimera.ops.delta import unit
from chimera.ops.rotary import Base, angles, frequencies, rotate


class Hope(Position):
    """Rotation of queries and keys, then projection on a hypersphere.

    Args:
        base: base of the frequencies θ_i = base^(−2i/k).
        radius_group: `mixer` trains r_h with the rate and decay of the mixer that it is in (TITAN
            Table 3: `ode` 5e-5); None with those of `position`.

    Raises:
        ValueError: the head width is odd.
    """

    provides: ClassVar[frozenset[Hook]] = frozenset({"rotate"})

    def __init__(
        self,
        site: Site,
        heads: int,
        head_dim: int,
        *,
        base: Base = 10000.0,
        radius_group: Literal["mixer"] | None = None,
    ) -> None:
        super().__init__(site, heads, head_dim)
        self.in_mixer = radius_group == "mixer"
        if head_dim % 2:
            raise ValueError(f"position=hope needs an even head width, not {head_dim}")
        self.head_dim = head_dim
        self.base = base
        self.log_radius = nn.Parameter(torch.full((heads,), math.log(head_dim) / 2))

    def rotate(
        self, q: Float[Tensor, "b h t k"], k: Float[Tensor, "b g t k"], pos: Int[Tensor, "#b t"]
    ) -> tuple[Tensor, Tensor]:
        cos, sin = angles(pos, frequencies(self.head_dim // 2, self.base, like=q))
        radius = self.log_radius.to(cos.dtype).exp()[:, None, None]
        # Normalising before rotating gives the same result, because a rotation keeps norms.
        on_sphere = unit(q) * radius
        keys = unit(k) * math.sqrt(self.head_dim)
        return rotate(on_sphere, cos, sin).to(q.dtype), rotate(keys, cos, sin).to(k.dtype)
