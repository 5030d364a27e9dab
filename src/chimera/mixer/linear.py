"""Linear attention (SPEC M5; SAIDL 2.5; arXiv 2006.16236).

    φ(x) = elu(x) + 1 > 0
    S_t = S_{t−1} + φ(k_t) v_tᵀ,   z_t = z_{t−1} + φ(k_t),   o_t = S_tᵀ φ(q_t) / (z_t·φ(q_t))

In the bidirectional form, every token reads S and z of the whole sequence. y = W_o o.

A position encoding with rotation rotates φ(q) and φ(k) in S only. The normaliser uses position 0
for all tokens and therefore stays positive (RoFormer, arXiv 2104.09864, eq. 19); single weights may
then be negative. [b t d] to [b t d]; S [b h k v], z [b h k].
"""

from __future__ import annotations

from typing import ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from chimera.contract import Context, Hook, Mixer, Out, Parts, PositiveInt, Site
from chimera.ops import decay
from chimera.ops.precision import wide, widen
from chimera.ops.together import together


class LinearState(NamedTuple):
    """Sums S and z over all tokens so far."""

    s: Float[Tensor, "b h k v"]
    z: Float[Tensor, "b h k"]


class LinearAttention(Mixer):
    """Linear attention: the kernel φ(q)·φ(k) replaces exp(q·k/√k).

    Args:
        heads: heads h; None for the model's number.
        form: parallel (cost t²), chunkwise (cost t), or auto: parallel up to one chunk. Encoders
            ignore `form`: their output is a quotient of two sums.
        chunk_size: tokens per chunk of the chunkwise form.
    """

    component = "linear"
    position_hooks: ClassVar[frozenset[Hook]] = frozenset({"embed", "rotate"})
    forms = ("parallel", "chunkwise", "recurrent")
    source = "M5; arXiv 2006.16236"
    cost = "t·d·(chunk + k)"
    state_size = "d·(k + 1)"

    def __init__(
        self,
        site: Site,
        parts: Parts,
        *,
        heads: PositiveInt | None = None,
        form: Literal["auto", "parallel", "chunkwise"] = "auto",
        chunk_size: PositiveInt = 64,
    ) -> None:
        super().__init__()
        h = self.heads = heads or site.heads
        if site.dim % h:
            raise ValueError(f"heads={h} does not divide the model width {site.dim}")
        self.causal = site.causal
        self.form = form
        self.chunk_size = chunk_size
        self.head_dim = site.dim // h
        self.q_proj = parts.linear(site.dim, site.dim, bias=False, role="qkv")
        self.k_proj = parts.linear(site.dim, site.dim, bias=False, role="qkv")
        self.v_proj = parts.linear(site.dim, site.dim, bias=False, role="qkv")
        self.o_proj = parts.linear(site.dim, site.dim, bias=False, role="out")
        self.position = parts.position(site, h, self.head_dim)

    def init_state(self, batch: int) -> LinearState:
        if not self.causal:
            raise ValueError("mixer=linear has no state in an encoder: decode with a causal model")
        like, h, k = self.q_proj.weight, self.heads, self.head_dim
        dtype = wide(like)
        return LinearState(
            like.new_zeros(batch, h, k, k, dtype=dtype), like.new_zeros(batch, h, k, dtype=dtype)
        )

    def forward(self, x: Tensor, ctx: Context, state: LinearState | None = None) -> Out:
        q, k, v = (
            rearrange(y, "b t (h k) -> b h t k", h=self.heads).contiguous()
            for y in together(x, self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = feature(q), feature(k)
        k, _ = decay.masked(k, None, ctx.mask)
        weight, z = self._normaliser(q, k, ctx, None if state is None else state.z)
        q, k = self.position.rotate(q, k, ctx.pos)
        y, s = self._attend(q, k, v, None if state is None else state.s)
        y = rearrange((y / weight).to(x.dtype), "b h t v -> b t (h v)")
        y = self.o_proj(y)
        return Out(y, None if s is None or z is None else LinearState(s, z))

    def _normaliser(
        self, q: Tensor, k: Tensor, ctx: Context, z: Tensor | None
    ) -> tuple[Float[Tensor, "b h t 1"], Float[Tensor, "b h k"] | None]:
        """z_t·φ(q_t), and z after the last token (None without a state)."""
        if "rotate" in self.position.provides:
            q, k = self.position.rotate(q, k, torch.zeros_like(ctx.pos))
        total = k.cumsum(2) if self.causal else k.sum(2, keepdim=True)
        if z is not None:
            total = total + z[:, :, None]
            z = total[:, :, -1]
        weight = (q * total).sum(-1, keepdim=True)
        # Before the first real token, o is 0/0; dividing by 1 gives 0.
        return weight.masked_fill(weight == 0, 1), z

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, s: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        tokens = q.shape[2]
        if s is not None and tokens == 1:
            return decay.step(q, k, v, None, s)
        chunk = tokens if self.form == "parallel" else self.chunk_size
        return decay.chunkwise(q, k, v, None, s, causal=self.causal, chunk=chunk)


def feature(x: Tensor) -> Tensor:
    """φ(x) = elu(x) + 1, in float32 or wider: near 0, half precision loses all digits."""
    return F.elu(widen(x)) + 1
