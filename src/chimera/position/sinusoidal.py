"""Add sine and cosine waves to the embedding (SPEC `sinusoidal`; SAIDL 2.3; arXiv 1706.03762).

    PE(p, 2i) = sin(p / base^(2i/d)),   PE(p, 2i + 1) = cos(p / base^(2i/d)),   x ← x + scale·PE

Works for any position; no parameters. [b t d] to [b t d].
"""

from __future__ import annotations

from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from chimera.contract import Hook, Position, PositiveFloat, Site
from chimera.ops.rotary import Base, angles, frequencies


class Sinusoidal(Position):
    """Sine and cosine waves of absolute positions, added to the embedding.

    Args:
        base: ratio of the longest to the shortest wavelength, approximately.
        scale: amplitude; 1 in the papers, which is much larger than an embedding with std 0.02.

    Raises:
        ValueError: the model width is odd.
    """

    provides: ClassVar[frozenset[Hook]] = frozenset({"embed"})

    def __init__(
        self,
        site: Site,
        heads: int,
        head_dim: int,
        *,
        base: Base = 10000.0,
        scale: PositiveFloat = 1.0,
    ) -> None:
        super().__init__(site, heads, head_dim)
        if site.dim % 2:
            raise ValueError(f"position=sinusoidal needs an even model width, not {site.dim}")
        self.base = base
        self.scale = scale

    def embed(self, x: Float[Tensor, "b t d"], pos: Int[Tensor, "#b t"]) -> Tensor:
        cos, sin = angles(pos, frequencies(x.shape[-1] // 2, self.base, like=x))
        waves = torch.stack((sin, cos), dim=-1).flatten(-2)[:, 0]
        return x + (self.scale * waves).to(x.dtype)
