"""Hyena: gates and convolutions as long as the text, filters by a small network (arXiv 2302.10866).

    (x⁰, …, x^{N−1}, v) = conv(W_in x),   z¹ = x^{N−1} ⊙ v,
    zⁿ⁺¹ = x^{N−1−n} ⊙ (hⁿ ∗ zⁿ + Dⁿ ⊙ zⁿ),   n = 1 … N − 1,   y = W_out z^N      (definition 3.1)
    h_j = MLP(j/(L−1), cos, sin(2π f j/L)) ⊙ exp(−a j/(L−1))                      (section 3.3)

The convolution is `ops.long_conv`, the filters are `mixer.shared.filters`; L is the model's longest
text, a a rate per channel. Longer texts go on along the same curves.

The paper has a filter before every gate; its public code, and this, leaves out the first, so that
order N has N − 1 filters. That code learns j's features at a rate of 1e-5 (fixed here), has biases
in W_in and W_out (none here), and no state: it cuts texts after L tokens. The state here is all z,
and grows; a filter has no state of constant size unless it is fitted by exponentials. The sines
start at frequency 1, as that code does by default; with 14, MQAR was not learned. Sums over
tokens are wide under autocast. x, y, v, zⁿ [b t d]; hⁿ [t d].
"""

from __future__ import annotations

from typing import Annotated, ClassVar, NamedTuple

import torch
from annotated_types import Ge
from jaxtyping import Float
from torch import Tensor, nn

from chimera.contract import (
    CAUSAL,
    Context,
    Direction,
    Mixer,
    Out,
    Parts,
    PositiveFloat,
    PositiveInt,
    Site,
)
from chimera.mixer.shared.filters import Filter
from chimera.ops.conv import causal_conv
from chimera.ops.local import Aligned
from chimera.ops.long_conv import convolve
from chimera.ops.precision import widen


class HyenaState(NamedTuple):
    """Inputs zⁿ of the long convolutions so far, and the last inputs of the short one."""

    past: Float[Tensor, "b s n d"]
    tail: Float[Tensor, "b tail x"]


class Hyena(Mixer):
    """Gates between long convolutions, whose filters a small network draws (Hyena).

    Args:
        order: N, gates; one long convolution less.
        conv: taps of the short convolution on all projections.
        bands: pairs of cosine and sine that the filter network reads.
        width: width of the filter network.
        frequency: initial frequency of its sines.
    """

    component = "hyena"
    undecayed = ("skip",)
    directions: ClassVar[frozenset[Direction]] = CAUSAL
    forms = ("parallel", "recurrent")
    source = "arXiv 2302.10866"
    cost = "t·d·(d + order·log t)"
    state_size = "(order−1)·t·d + (conv−1)·(order+1)·d (the cache grows)"

    def __init__(
        self,
        site: Site,
        parts: Parts,
        *,
        order: Annotated[int, Ge(2)] = 2,
        conv: PositiveInt = 3,
        bands: PositiveInt = 16,
        width: PositiveInt = 64,
        frequency: PositiveFloat = 1.0,
    ) -> None:
        super().__init__()
        d = site.dim
        bound = conv**-0.5
        self.order = order
        self.in_proj = parts.linear(d, (order + 1) * d, bias=False, role="qkv")
        self.taps = nn.Parameter(torch.empty((order + 1) * d, conv).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty((order + 1) * d).uniform_(-bound, bound))
        self.skip = nn.Parameter(torch.randn(order - 1, d))
        self.filters = Filter(
            (order - 1) * d, site.max_len, bands=bands, width=width, frequency=frequency
        )
        self.out_proj = parts.linear(d, d, bias=False, role="out")

    def init_state(self, batch: int) -> HyenaState:
        like = self.taps
        (width, conv) = self.taps.shape
        past = like.new_zeros(batch, 0, *self.skip.shape)
        return HyenaState(past, like.new_zeros(batch, conv - 1, width))

    def forward(self, x: Tensor, ctx: Context, state: HyenaState | None = None) -> Out:
        past, tail = state or (None, None)
        tokens = Aligned.of(ctx)
        mask = tokens.mask
        t = x.shape[1]
        mixed = self.in_proj(tokens.take(x))
        mixed, tail = causal_conv(mixed, self.taps, self.bias, tail, mask)
        last, *gates, z = mixed.chunk(self.order + 1, -1)
        seen = t if past is None else t + past.shape[1]
        filters = self.filters(seen).unflatten(1, self.skip.shape)
        inputs = []
        for n, gate in enumerate(reversed(gates)):
            z = z * gate
            if mask is not None:
                z = z.masked_fill(~mask[..., None], 0)
            inputs.append(z)
            whole = z if past is None else torch.cat([past[:, :, n].to(z.dtype), z], 1)
            z = (convolve(whole, filters[:, n], t) + widen(self.skip[n]) * z).to(z.dtype)
        y = tokens.restore(z * last).to(x.dtype)
        y = self.out_proj(y)
        if past is None or tail is None:
            return Out(y)
        past = torch.cat([past, torch.stack(inputs, 2).to(past.dtype)], 1)
        return Out(y, HyenaState(past if mask is None else _right(past, mask), tail))


def _right(past: Float[Tensor, "b s n d"], mask: Tensor) -> Float[Tensor, "b s n d"]:
    """Move the zeros of padding, which are last, before the first token."""
    missing = (~mask).sum(1, keepdim=True)
    index = (torch.arange(past.shape[1], device=past.device) - missing) % past.shape[1]
    return past.take_along_dim(index[..., None, None], 1)
