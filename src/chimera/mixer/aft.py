"""Attention-free transformer, full, local and simple (SPEC M15; arXiv 2105.14103).

    y_t = σ(q_t) ⊙ Σ_s exp(w_ts + k_s) ⊙ v_s / Σ_s exp(w_ts + k_s),   then W_o     s ≤ t in decoders
    full:   w_ts = a_t·b_s              learned factors of rank r for each position, as in the paper
    local:  w_ts = a_t·b_s for |t − s| < window, else w_ts = 0
    simple: w = 0

Decoders and encoders have native forms. The factors cover max_len positions. full costs t²·d, local
t·window·d, simple t·d; the state of simple has 3·d numbers. q, k, v [b t d]; a, b [max_len r].
"""

from __future__ import annotations

from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from chimera.contract import Context, Mixer, Out, Parts, PositiveInt, Site
from chimera.ops import aft
from chimera.ops.attention import KVCache
from chimera.ops.local import Aligned, empty_cache, slide
from chimera.ops.precision import autocast_off, widen


class State(NamedTuple):
    """Keys and values within reach of w, as one head, and the sums over all older keys."""

    recent: KVCache
    older: aft.Sums


class AFT(Mixer):
    """Attention-free transformer: each channel weights keys by exp(w + k), without heads.

    Args:
        form: full, local or simple, see above.
        rank: r, width of the factors of w.
        window: tokens with nonzero w in each direction, for form=local.
        bias: biases in the four projections (ignored by quantisers without biases).
    """

    component = "aft"
    forms: ClassVar[tuple[str, ...]] = ("parallel", "recurrent")
    source = "M15; arXiv 2105.14103"
    cost = "full t²·d; local t·window·d; simple t·d"
    state_size = "full 2·t·d (the cache grows); local 2·window·d; simple 3·d"

    def __init__(
        self,
        site: Site,
        parts: Parts,
        *,
        form: Literal["full", "local", "simple"] = "full",
        rank: PositiveInt = 128,
        window: PositiveInt = 32,
        bias: bool = False,
    ) -> None:
        super().__init__()
        d = self.dim = site.dim
        self.form = form
        self.window = window
        self.causal = site.causal
        self.q_proj = parts.linear(d, d, bias=bias, role="gate")
        self.k_proj = parts.linear(d, d, bias=bias, role="qkv")
        self.v_proj = parts.linear(d, d, bias=bias, role="qkv")
        self.o_proj = parts.linear(d, d, bias=bias, role="out")
        if form != "simple":
            self.max_positions = site.max_len
            self.a = nn.Parameter(0.01 * torch.randn(site.max_len, rank))
            self.b = nn.Parameter(0.01 * torch.randn(site.max_len, rank))

    def too_long(self, positions: int) -> str:
        return (
            f"mixer=aft form={self.form} has factors for {self.max_positions} positions and got"
            f" position {positions - 1}; raise model.max_len or use form=simple"
        )

    def init_state(self, batch: int) -> State:
        like = self.o_proj.weight.new_empty(batch, self.dim)
        like = widen(like)
        slots = self.window - 1 if self.form == "local" else 0
        return State(empty_cache(batch, 1, slots, self.dim, like), aft.Sums.empty(like))

    def forward(self, x: Tensor, ctx: Context, state: State | None = None) -> Out:
        tokens = Aligned.of(ctx)
        x = tokens.take(x)
        k = widen(self.k_proj(x))
        v = widen(self.v_proj(x))
        with autocast_off(x):
            if self.form == "simple":
                sums, state = self._simple(k, v, tokens, state)
            else:
                sums, state = self._learned(k, v, tokens, state)
        y = tokens.restore(self.q_proj(x).sigmoid() * sums.read().to(x.dtype))
        return Out(self.o_proj(y), state)

    def _simple(
        self, k: Tensor, v: Tensor, tokens: Aligned, state: State | None
    ) -> tuple[aft.Sums, State | None]:
        mask = None if tokens.mask is None else tokens.mask[..., None]
        if not self.causal:
            return aft.total(k, v, mask), None
        sums = aft.running(aft.each(k, v, mask))
        if state is None:
            return sums, None
        sums = sums.merge(state.older.unsqueeze(1))
        return sums, State(state.recent, aft.Sums(*(x[:, -1] for x in sums)))

    def _learned(
        self, k: Tensor, v: Tensor, tokens: Aligned, state: State | None
    ) -> tuple[aft.Sums, State | None]:
        t = k.shape[1]
        if state is None:
            mask = None if tokens.mask is None else tokens.mask[..., None]
            return self._sums(k, v, tokens.pos, mask), None
        k = k[:, None]
        v = v[:, None]
        if self.form == "local":
            keys, recent = slide(k, v, tokens, state.recent)
        else:
            keys = recent = state.recent.extend(k, v, tokens.pos, tokens.mask)
        k = keys.k[:, 0].to(k.dtype)
        v = keys.v[:, 0].to(v.dtype)
        mask = keys.mask[..., None]
        if t == 1:  # all keys in the cache are within reach of w
            w = self.a[tokens.pos] @ self.b[keys.pos].mT
            sums = aft.weighted(w.to(k.dtype), k, v, mask).merge(state.older.unsqueeze(1))
        else:
            sums = self._sums(k, v, keys.pos, mask, state.older)
            sums = aft.Sums(*(x[:, -t:] for x in sums))
        if self.form != "local":
            return sums, State(recent, state.older)
        # For each new real token, the oldest key leaves the reach of w and joins the older sums.
        new = t if tokens.mask is None else tokens.mask.sum(1, keepdim=True)
        leaving = mask & (torch.arange(mask.shape[1], device=k.device) < new)[..., None]
        added = aft.Sums(*(x[:, 0] for x in aft.total(k, v, leaving)))
        return sums, State(recent, state.older.merge(added))

    def _sums(
        self, k: Tensor, v: Tensor, pos: Tensor, mask: Tensor | None, older: aft.Sums | None = None
    ) -> aft.Sums:
        """Sums for tokens in order of position."""
        a = self.a[pos].to(k.dtype)
        b = self.b[pos].to(k.dtype)
        if self.form == "local":
            return aft.local(a, b, k, v, mask, window=self.window, causal=self.causal, older=older)
        if self.causal:
            return aft.halving(a, b, k, v, mask)
        return aft.weighted(a @ b.mT, k, v, mask)
