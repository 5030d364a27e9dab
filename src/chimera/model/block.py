"""A layer: residual branches of a mixer and an ffn, with norms in one of five places.

z₁ = x + Mixer(Norm(x)),   z₂ = z₁ + FFN(Norm(z₁))                       (TITAN eq. 20, 21)

Other places of the norms of a branch f, by `placement`:

    pre        x + f(N(x))                     TITAN; arXiv 2002.04745
    post       N(x + f(x))                     arXiv 1706.03762
    output     x + N(f(x))                     OLMo 2, arXiv 2501.00656
    sandwich   x + N′(f(N(x)))                 CogView, arXiv 2105.13290; Gemma 2
    peri       sandwich, and a norm of the embeddings      Peri-LN, arXiv 2502.02732

The final norm stays in all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from jaxtyping import Bool, Float
from torch import Tensor, nn

from chimera.contract import FFN, Context, Mixer, Norm, Out, Site
from chimera.ops.dropout import dropout, label

#: Places of the norms in a block.
Placement = Literal["pre", "post", "output", "sandwich", "peri"]
#: Placements with a norm before a branch, and with a second one after it.
BEFORE = frozenset({"pre", "sandwich", "peri"})
TWICE = frozenset({"sandwich", "peri"})

AFTER_MIXER, AFTER_FFN = map(label, ("after mixer", "after ffn"))


def blank(x: Float[Tensor, "b t d"], mask: Bool[Tensor, "b t"] | None) -> Float[Tensor, "b t d"]:
    """Set padding to zero, so that statistics of later layers exclude it."""
    return x if mask is None else x.masked_fill(~mask[..., None], 0.0)


class Block(nn.Module):
    """Residual block; with `ffn` None it has neither the ffn branch nor its norms.

    Args:
        site, mixer, ffn: of this layer.
        norms: of the mixer's branch and of the ffn's, one each, or two with a placement of `TWICE`.
        placement: of the norms, see above.
    """

    def __init__(
        self,
        site: Site,
        mixer: Mixer,
        ffn: FFN | None,
        norms: Sequence[Norm],
        placement: Placement = "pre",
    ) -> None:
        super().__init__()
        self.mixer_norm = norms[0]
        self.mixer = mixer
        self.ffn_norm: Norm | None = None if ffn is None else norms[1]
        self.ffn: FFN | None = ffn
        twice = placement in TWICE
        self.mixer_out_norm: Norm | None = norms[-1 if ffn is None else 2] if twice else None
        self.ffn_out_norm: Norm | None = norms[3] if twice and ffn is not None else None
        self.site = site
        self.dropout = site.dropout
        self.placement = placement

    def forward(self, x: Tensor, ctx: Context, state: Any = None) -> Out:
        mixed = self.mixer(self._input(x, self.mixer_norm, ctx), ctx, state)
        x = self._added(x, mixed.y, self.mixer_norm, self.mixer_out_norm, ctx, AFTER_MIXER)
        if self.ffn is None or self.ffn_norm is None:
            return Out(x, mixed.state, mixed.aux, mixed.stats)
        fed = self.ffn(self._input(x, self.ffn_norm, ctx), ctx)
        x = self._added(x, fed.y, self.ffn_norm, self.ffn_out_norm, ctx, AFTER_FFN)
        return Out(x, mixed.state, mixed.aux | fed.aux, mixed.stats | fed.stats)

    def _input(self, x: Tensor, norm: Norm, ctx: Context) -> Tensor:
        """Input of a branch, with zeros at padding."""
        return blank(norm(x, ctx.mask) if self.placement in BEFORE else x, ctx.mask)

    def _added(
        self, x: Tensor, y: Tensor, norm: Norm, out: Norm | None, ctx: Context, call: int
    ) -> Tensor:
        """The residual stream x with the output y of a branch."""
        after = norm if self.placement == "output" else out
        if after is not None:
            y = after(blank(y, ctx.mask), ctx.mask)
        x = x + dropout(y, self.dropout, self.training, ctx.draws, call)
        return norm(blank(x, ctx.mask), ctx.mask) if self.placement == "post" else x
