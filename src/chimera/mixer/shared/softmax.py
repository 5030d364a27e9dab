"""Base class of softmax mixers: projections, heads, position encoding, cache, attention.

    q, k, v = W_q x, W_k x, W_v x;   O_i = softmax_{j ∈ N(i)}(q_i·k_j/√k + bias_ij) v_j;   y = W_o O

with h query heads and g key-value heads (SPEC M1, M2; arXiv 1706.03762, 2305.13245). N(i) has all
tokens (`full_attention`, with a growing cache) or the tokens that a rule allows (`local_attention`,
with a cache of constant size). x [b t d]; q [b h t k]; k, v [b g t k]; O [b h t k].
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from chimera.contract import Context, Hook, Mixer, Parts, Site
from chimera.ops import local
from chimera.ops.attention import Heads, KVCache, allowed, attend, within
from chimera.ops.together import together


class SoftmaxMixer(Mixer):
    """Mixer with the four projections of attention.

    Args:
        site, parts: see `Mixer`.
        heads: query heads h; None for the model's number.
        kv_heads: key-value heads g, a divisor of h; None for h, `quarter` for h/4.
        head_dim: width k of a head; None for d/h.
        bias: biases in the four projections.
        dropout: dropout probability of the attention weights; None for that of the site.

    Raises:
        ValueError: `heads` does not divide the model width, or `kv_heads` does not divide `heads`.
    """

    component = "attention"
    #: Whether scores are held in memory.
    dense = False
    position_hooks: ClassVar[frozenset[Hook]] = frozenset({"embed", "rotate", "bias"})
    forms: ClassVar[tuple[str, ...]] = ("parallel", "recurrent")
    cost = "t²·d"
    state_size = "2·t·g·k (the cache grows)"

    def __init__(
        self,
        site: Site,
        parts: Parts,
        *,
        heads: int | None,
        kv_heads: int | Literal["quarter"] | None,
        bias: bool,
        head_dim: int | None = None,
        dropout: float | None = None,
    ) -> None:
        super().__init__()
        h = heads or site.heads
        if head_dim is None and site.dim % h:
            raise ValueError(f"heads={h} does not divide the model width {site.dim}")
        self.heads = Heads.of(h, kv_heads)
        self.causal = site.causal
        self.dropout = site.dropout if dropout is None else dropout
        k = self.head_dim = head_dim or site.dim // h
        self.q_proj = parts.linear(site.dim, h * k, bias=bias, role="qkv")
        self.k_proj = parts.linear(site.dim, self.heads.g * k, bias=bias, role="qkv")
        self.v_proj = parts.linear(site.dim, self.heads.g * k, bias=bias, role="qkv")
        self.o_proj = parts.linear(h * k, site.dim, bias=bias, role="out")
        self.position = parts.position(site, h, k)

    @property
    def torch_draws(self) -> str:
        """Where torch's generator draws dropout; see `contract.Mixer.torch_draws`."""
        return "scaled_dot_product_attention" if self.dropout else ""

    def init_state(self, batch: int) -> Any:
        return self.cache(batch)

    def cache(self, batch: int, slots: int | None = None) -> KVCache:
        """Empty cache with `slots` places; None for a growing cache."""
        like = self.q_proj.weight
        g = self.heads.g
        k = self.head_dim
        if slots is None:
            return KVCache.empty(batch, g, k, k, like)
        return local.empty_cache(batch, g, slots, k, like)

    def project(self, x: Float[Tensor, "b t d"]) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v split into heads, before rotation by positions."""
        q, k, v = together(x, self.q_proj, self.k_proj, self.v_proj)
        heads = self.heads
        return heads.split(q, heads.h), heads.split(k, heads.g), heads.split(v, heads.g)

    def full_attention(
        self,
        q: Float[Tensor, "b h t k"],
        k: Float[Tensor, "b g t k"],
        v: Float[Tensor, "b g t k"],
        pos: Int[Tensor, "#b t"],
        mask: Bool[Tensor, "b t"] | None,
        cache: KVCache | None,
        ctx: Context | None = None,
    ) -> tuple[Float[Tensor, "b h t k"], KVCache | None]:
        """Attention over the given tokens and the cache, and the extended cache.

        `ctx`, if `pos` and `mask` are its own, keeps the attention mask for the other layers.
        """
        q, k = self.position.rotate(q, k, pos)
        pos_k = pos
        visible = None
        if cache is not None:
            cache = cache.extend(k, v, pos, mask)
            k, v, pos_k, mask = cache
            if cache.unpadded:
                mask = None
        elif ctx is not None and (mask is not None or ctx.documents is not None):
            visible = ctx.cached(f"allowed {self.causal}", lambda: self._visible(ctx))
        scores = self.position.bias(pos, pos_k)
        dropout = self._dropout()
        if "content" in self.position.provides:
            seen = visible
            if seen is None:
                seen = allowed(q.shape[2], k.shape[2], mask, causal=self.causal, device=q.device)
            by_content = self.position.content(q, k, seen)
            given = [bias for bias in (scores, by_content) if bias is not None]
            scores = given[0] + given[1] if len(given) > 1 else given[0] if given else None
        y = attend(
            q, k, v, mask=mask, bias=scores, causal=self.causal, dropout=dropout, visible=visible,
            dense=self.dense,
        )  # fmt: skip
        return y, cache

    def _visible(self, ctx: Context) -> Tensor | None:
        """Attention mask [b 1 t t] by padding, direction and documents."""
        t = ctx.pos.shape[1]
        device = ctx.pos.device
        visible = allowed(t, t, ctx.mask, causal=self.causal, device=device)
        return visible if ctx.documents is None else within(ctx.documents, visible)

    def local_attention(
        self,
        q: Float[Tensor, "b h t k"],
        k: Float[Tensor, "b g t k"],
        v: Float[Tensor, "b g t k"],
        tokens: local.Aligned,
        cache: KVCache | None,
        *,
        block: int | None,
        reach: int,
        rule: local.Rule,
    ) -> tuple[Float[Tensor, "b h t k"], KVCache | None]:
        """Attention over the keys that `rule` allows; `block` and `reach` as in `local.attend`."""
        q, k = self.position.rotate(q, k, tokens.pos)
        keys, cache = local.extend(k, v, tokens, cache)
        y = local.attend(
            q,
            keys,
            tokens.pos,
            block=block,
            reach=reach,
            causal=self.causal,
            rule=rule,
            bias=self.position.bias,
            dropout=self._dropout(),
            dense=self.dense,
        )
        return y, cache

    def output(self, y: Float[Tensor, "b h t k"], tokens: local.Aligned | None = None) -> Tensor:
        """Apply W_o; `tokens` restores the order of tokens if they were reordered."""
        y = rearrange(y, "b h t k -> b t (h k)")
        return self.o_proj(y if tokens is None else tokens.restore(y))

    def _dropout(self) -> float:
        return self.dropout if self.training else 0.0
