"""Softmax attention with a gate on its output (arXiv 2505.06708, eq. 5, position G1).

    O = softmax(Q Kᵀ / √k + bias) V,   y = W_o (O ⊙ σ(W_g x))

The gate is per channel of each head. It makes the layer's output nonlinear in the values and lets a
head write nothing, which takes the attention from the first token (attention sinks). Qwen3-Next has
it in every fourth layer, with rotations of a quarter of the channels (position=partial_rope) and
norms of queries and keys (model.qk_norm). Grouped heads as in mixer=attention.
x [b t d]; q, O, gate [b h t k]; k, v [b g t k].
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from einops import rearrange
from torch import Tensor

from chimera.contract import Context, Hook, Out, Parts, PositiveInt, Site
from chimera.contract_hf import unsupported
from chimera.errors import UserError
from chimera.mixer.shared.checkpoint import heads_of, keys_and_values, rotated
from chimera.mixer.shared.softmax import SoftmaxMixer
from chimera.ops.attention import KVCache
from chimera.ops.precision import widen
from chimera.ops.rotary import pairs_together


class GatedAttention(SoftmaxMixer):
    """Softmax attention whose output has a sigmoid gate per channel.

    Args:
        heads: query heads h; None for the model's number.
        kv_heads: key-value heads g, a divisor of h; None for h, `quarter` for h/4.
        head_dim: width of a head; None for d/h.
        bias: biases in the projections of q, k, v and the output, and of the gate.
    """

    component = "gated_attention"
    position_hooks: ClassVar[frozenset[Hook]] = frozenset({"embed", "rotate", "bias", "content"})
    documents = True
    source = "arXiv 2505.06708"

    def __init__(
        self,
        site: Site,
        parts: Parts,
        *,
        heads: PositiveInt | None = None,
        kv_heads: PositiveInt | Literal["quarter"] | None = None,
        head_dim: PositiveInt | None = None,
        bias: bool = False,
    ) -> None:
        super().__init__(site, parts, heads=heads, kv_heads=kv_heads, head_dim=head_dim, bias=bias)
        self.gate_proj = parts.linear(
            site.dim, self.heads.h * self.head_dim, bias=bias, role="gate"
        )

    def forward(self, x: Tensor, ctx: Context, state: KVCache | None = None) -> Out:
        y, state = self.full_attention(*self.project(x), ctx.pos, ctx.mask, state, ctx)
        gate = self.heads.split(widen(self.gate_proj(x)).sigmoid(), self.heads.h)
        y = rearrange(y * gate.to(y.dtype), "b h t k -> b t (h k)")
        return Out(self.o_proj(y), state)

    @classmethod
    def hf_settings(cls, config: Mapping[str, Any], layer: int) -> dict[str, Any] | None:
        """Full layers of Qwen3-Next."""
        if config["model_type"] != "qwen3_next":
            return None
        if config["layer_types"][layer] != "full_attention":
            return None
        if other := unsupported(config, attention_bias=False):
            raise UserError(f"config.json has {other}, which mixer=gated_attention lacks")
        return heads_of(config)

    def hf_tensors(
        self, tensors: Mapping[str, Tensor], config: Mapping[str, Any]
    ) -> dict[str, Tensor]:
        """W_q and W_g are one matrix there, by head."""
        h, k = self.heads.h, self.head_dim
        both = tensors["self_attn.q_proj.weight"].unflatten(0, (h, 2, k))
        found = keys_and_values(tensors, config, groups=self.heads.g, width=k, bias=False)
        query = both[:, 0].flatten(0, 1)
        return found | {
            "q_proj.weight": pairs_together(query, h, rotated(config, k)),
            "gate_proj.weight": both[:, 1].flatten(0, 1),
        }
