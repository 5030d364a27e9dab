"""Softmax attention: multi-head, grouped-query and multi-query (SPEC M1, M2).

    O = softmax(Q Kᵀ / √k + bias) V W_o                              (SAIDL 2.2, TITAN 4.5, eq. 33)

With `kv_heads` = g < h, h/g query heads share one key-value head (GQA, arXiv 2305.13245; TITAN:
16 heads, 4 groups; g = 1 is multi-query, SAIDL 2.5), and the cache has g heads. Decoders use a
causal mask, encoders none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from torch import Tensor

from chimera.contract import Context, Hook, Out, Parts, PositiveInt, Site
from chimera.contract_gguf import GGUF, in_gguf, joined
from chimera.contract_hf import LLAMA_LIKE
from chimera.mixer.shared.checkpoint import heads_of, keys_and_values, rotated
from chimera.mixer.shared.softmax import SoftmaxMixer
from chimera.ops.attention import KVCache
from chimera.ops.rotary import pairs_together


class Attention(SoftmaxMixer):
    """Softmax attention over all tokens.

    Args:
        heads: query heads h; None for the model's number.
        kv_heads: key-value heads g, a divisor of h; None for h, `quarter` for h/4.
        head_dim: width of a head; None for d/h.
        bias: biases in the four projections (ignored by quantisers without biases).
        form: `dense` holds all scores in memory, as SAIDL's attention seems to; None and `fused`
            use torch's fused attention.
    """

    position_hooks: ClassVar[frozenset[Hook]] = frozenset({"embed", "rotate", "bias", "content"})
    documents = True
    source = "M1, M2; arXiv 1706.03762, 2305.13245"

    def __init__(
        self,
        site: Site,
        parts: Parts,
        *,
        heads: PositiveInt | None = None,
        kv_heads: PositiveInt | Literal["quarter"] | None = None,
        head_dim: PositiveInt | None = None,
        bias: bool = False,
        form: Literal["fused", "dense"] | None = None,
    ) -> None:
        super().__init__(site, parts, heads=heads, kv_heads=kv_heads, head_dim=head_dim, bias=bias)
        self.dense = form == "dense"

    def forward(self, x: Tensor, ctx: Context, state: KVCache | None = None) -> Out:
        y, state = self.full_attention(*self.project(x), ctx.pos, ctx.mask, state, ctx)
        return Out(self.output(y), state)

    def gguf(self) -> GGUF:
        """As llama.cpp's attention; its rotary positions pair channels as ours, or halves."""
        layers = {
            "attn_q": self.q_proj,
            "attn_k": self.k_proj,
            "attn_v": self.v_proj,
            "attn_output": self.o_proj,
        }
        sizes = {"attention.head_count": self.heads.h, "attention.head_count_kv": self.heads.g}
        return joined(
            {name: in_gguf(layer, "quant") for name, layer in layers.items()},
            GGUF(keys=sizes),
            in_gguf(self.position, "position"),
        )

    @classmethod
    def hf_settings(cls, config: Mapping[str, Any], layer: int) -> dict[str, Any] | None:
        """Layers of Llama, Mistral, Qwen2 and Qwen3."""
        if config["model_type"] not in LLAMA_LIKE:
            return None
        bias = bool(config.get("attention_bias")) or config["model_type"] == "qwen2"
        return heads_of(config) | {"bias": bias}

    def hf_tensors(
        self, tensors: Mapping[str, Tensor], config: Mapping[str, Any]
    ) -> dict[str, Tensor]:
        """As `mixer.shared.checkpoint`."""
        h, k, bias = self.heads.h, self.head_dim, "self_attn.q_proj.bias" in tensors
        found = keys_and_values(tensors, config, groups=self.heads.g, width=k, bias=bias)
        for name in ("weight", "bias") if bias else ("weight",):
            query = tensors[f"self_attn.q_proj.{name}"]
            found[f"q_proj.{name}"] = pairs_together(query, h, rotated(config, k))
        return found
