"""Depthwise convolution before attention or any other mixer (SPEC M14; SAIDL 2.7).

    c_i = b + Σ_j w_j ⊙ x_{i−K+1+j}        decoder: the K last tokens, zeros before the first
    c_i = b + Σ_j w_j ⊙ x_{i−⌊K/2⌋+j}      encoder: K tokens around i, zeros beyond both ends
    y = c + Inner(Norm(x + c))             residual (SAIDL Table 6)
    y = Inner(c)                           plain (SAIDL 2.7, the text)

SAIDL's text counts K·d parameters, but its Table 6 counts (K + 3)·d. The convolution of Table 6
therefore has a bias, a LayerNorm and a separate residual branch; this form is the default. x is the
normed input of the mixer: a mixer does not get the residual stream, so that Norm(x + c) has the
normed x, not the raw x as in SAIDL. Padding is skipped, as if real tokens were adjacent.
x, c [b t d]; w [d K].
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from chimera.contract import Context, Hook, Mixer, MixerFactory, Out, Parts, PositiveInt, Site
from chimera.ops.conv import causal_conv


class State(NamedTuple):
    """Last K − 1 inputs, and the state of the inner mixer."""

    tail: Float[Tensor, "b tail d"]
    inner: Any


class ConvAttention(Mixer):
    """Depthwise convolution, then another mixer.

    Args:
        inner: factory of the mixer after the convolution.
        kernel: K, taps of the convolution.
        bias: a bias b per channel.
        residual: True for the residual form, False for the plain form, see above.
    """

    component = "attention"
    position_hooks: ClassVar[frozenset[Hook]] = frozenset({"embed", "rotate", "bias"})
    forms: ClassVar[tuple[str, ...]] = ("parallel", "recurrent")
    source = "M14; SAIDL 2.7"
    cost = "t·K·d + the inner mixer's"
    state_size = "(K−1)·d + the inner mixer's"

    def __init__(
        self,
        site: Site,
        parts: Parts,
        *,
        inner: MixerFactory,
        kernel: PositiveInt = 3,
        bias: bool = True,
        residual: bool = True,
    ) -> None:
        super().__init__()
        self.causal = site.causal
        bound = 1 / math.sqrt(kernel)
        self.weight = nn.Parameter(torch.empty(site.dim, kernel).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(site.dim).uniform_(-bound, bound)) if bias else None
        self.norm = parts.norm(site.dim) if residual else None
        self.inner = inner(site, parts)
        # Capabilities of the inner mixer; `model.assemble` checks them on the instance.
        self.component = self.inner.component  # type: ignore[misc]
        self.directions = self.inner.directions  # type: ignore[misc]
        self.position_hooks = self.inner.position_hooks  # type: ignore[misc]
        self.forms = self.inner.forms  # type: ignore[misc]

    def init_state(self, batch: int) -> State:
        d, kernel = self.weight.shape
        return State(self.weight.new_zeros(batch, kernel - 1, d), self.inner.init_state(batch))

    def forward(self, x: Tensor, ctx: Context, state: State | None = None) -> Out:
        tail, inner = state or (None, None)
        c, tail = self._convolve(x, tail, ctx.mask)
        if ctx.mask is not None:
            c = c.masked_fill(~ctx.mask[..., None], 0)  # statistics must not include padding
        out = self.inner(c if self.norm is None else self.norm(x + c, ctx.mask), ctx, inner)
        y = out.y if self.norm is None else out.y + c
        return Out(y, None if state is None else State(tail, out.state), out.aux, out.stats)

    def _convolve(
        self, x: Tensor, tail: Tensor | None, mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        if self.causal:
            return causal_conv(x, self.weight, self.bias, tail, mask)
        centre = self.weight.shape[1] // 2
        past, tail = causal_conv(x, self.weight[:, : centre + 1], self.bias, None, mask)
        # Taps of later tokens, for reversed time. The zero tap is for the current token, which
        # `past` includes already.
        after = F.pad(self.weight[:, centre + 1 :].flip(1), (0, 1))
        mask = None if mask is None else mask.flip(1)
        future, _ = causal_conv(x.flip(1), after, None, None, mask)
        return past + future.flip(1), tail
