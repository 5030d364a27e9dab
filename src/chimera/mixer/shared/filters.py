"""Filters of long convolutions as functions of the distance, by a small network (Hyena).

    h_j = W₃ s(W₂ s(W₁ s(W₀ u_j + b₀) + b₁) + b₂) ⊙ exp(−a j/(L−1)),   s(x) = sin(ω ⊙ x)
    u_j = (j/(L−1), cos(2π f j/L), −sin(2π f j/L)) for `bands` frequencies f

(arXiv 2302.10866, section 3.3.) The window falls to 0.01 between 0.3·L and 1.5·L, with a rate a per
channel. Values as in its public code: ω is learned, f and a are not. Not quantised. That code gives
these weights a rate of their own: `optim.rates.filter`.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from chimera.ops.precision import autocast_off, wide, widen

TARGET = 0.01
SLOW = 1.5
FAST = 0.3


class Filter(nn.Module):
    """Filters as functions of the distance, in float32 or wider.

    Args:
        channels: number of filters.
        length: L, the distance at which features have gone through their first period.
        bands: frequencies f, from 0 to bands − 1.
        width: of the MLP's three hidden layers.
        frequency: initial factor inside the sines, learned per hidden channel.
    """

    component = "filter"
    undecayed = ("first", "hidden", "last", "biases", "frequency")

    def __init__(
        self, channels: int, length: int, *, bands: int, width: int, frequency: float
    ) -> None:
        super().__init__()
        self.channels = channels
        self.length = max(length, 2)
        self.bands = bands
        inputs = 1 + 2 * bands
        bound = width**-0.5
        self.first = nn.Parameter(torch.empty(width, inputs).uniform_(-1, 1) * inputs**-0.5)
        self.hidden = nn.Parameter(torch.empty(2, width, width).uniform_(-bound, bound))
        self.last = nn.Parameter(torch.empty(channels, width).uniform_(-bound, bound))
        self.biases = nn.Parameter(torch.empty(3, width).uniform_(-bound, bound))
        self.frequency = nn.Parameter(torch.full((width,), frequency))

    def forward(self, tokens: int) -> Float[Tensor, "s c"]:
        """Values at the distances 0 … tokens − 1."""
        dtype = wide(self.last)
        distance = torch.arange(tokens, dtype=dtype, device=self.last.device)[:, None]
        time = distance / (self.length - 1)
        angle = 2 * math.pi / self.length * distance
        angle = angle * torch.linspace(
            1e-4, max(self.bands - 1, 1e-4), self.bands, dtype=dtype, device=angle.device
        )
        rates = torch.linspace(1 / SLOW, 1 / FAST, self.channels, dtype=dtype, device=angle.device)
        first, hidden, last, biases, frequency = (
            widen(p) for p in (self.first, self.hidden, self.last, self.biases, self.frequency)
        )
        with autocast_off(distance):
            y = torch.cat([time, angle.cos(), -angle.sin()], -1)
            for weight, bias in zip((first, *hidden), biases, strict=True):
                y = (frequency * F.linear(y, weight, bias)).sin()
            return F.linear(y, last) * (math.log(TARGET) * rates * time).exp()
