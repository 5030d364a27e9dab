"""Small deterministic random models of the families that LiZAttention supports."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

SMALL: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "Llama": {},
    "Mistral": {"sliding_window": 6, "head_dim": 8},
    "Qwen2": {},
    "Qwen3": {"head_dim": 16},
    "Olmo": {"clip_qkv": 0.01},
    "Olmo2": {},
    "Olmoe": {"num_experts": 4, "num_experts_per_tok": 2, "clip_qkv": 0.01},
    "Gemma": {"head_dim": 8},
    "Gemma3Text": {"head_dim": 8, "sliding_window": 6},
    "Phi3": {},
    "GPT2": {
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 256,
        "n_inner": 48,
        "num_key_value_heads": 4,
    },
}
families = pytest.mark.parametrize("family", FAMILIES)


def causal_model(family: str = "Llama", seed: int = 0, attention: str = "sdpa") -> Any:
    """Model of transformers in evaluation mode, with weights so large that layers have effect."""
    torch.manual_seed(seed)
    config = getattr(transformers, f"{family}Config")(**SMALL | FAMILIES[family])
    model = transformers.AutoModelForCausalLM.from_config(
        config, attn_implementation=attention, experts_implementation="eager"
    )
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.2)
    return model.eval()


def tokens(batch: int, length: int, vocab: int = 61) -> Tensor:
    """Random token ids without special tokens."""
    generator = torch.Generator().manual_seed(length)
    return torch.randint(3, vocab, (batch, length), generator=generator)


class FusedAttention(nn.Module):
    """OpenELM's attention: one projection for q, k, v; the number of heads differs by layer."""

    def __init__(self, dim: int, heads: int, kv_heads: int, index: int) -> None:
        super().__init__()
        self.num_q_heads, self.num_k_heads, self.num_v_heads = heads, kv_heads, kv_heads
        self.head_dim, self.layer_idx = 8, index
        self.qkv_proj = nn.Linear(dim, (heads + 2 * kv_heads) * 8, bias=False)
        self.out_proj = nn.Linear(heads * 8, dim, bias=False)

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, past: Any = None
    ) -> tuple[Tensor, None]:
        b, t, _ = hidden_states.shape
        x = self.qkv_proj(hidden_states).view(b, t, -1, 8).transpose(1, 2)
        q, k, v = x.split([self.num_q_heads, self.num_k_heads, self.num_v_heads], 1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.out_proj(y.transpose(1, 2).reshape(b, t, -1)), None


class OpenELMLike(nn.Module):
    """Two such layers, the second with more heads, as in remote code of the hub."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(61, 32)
        self.layers = nn.ModuleList(
            nn.ModuleDict({"attn": FusedAttention(32, 2 + 2 * i, 1 + i, i)}) for i in range(2)
        )

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Any:
        x = self.table(input_ids)
        for layer in self.layers:
            x = x + layer["attn"](hidden_states=x, attention_mask=attention_mask)[0]
        return SimpleNamespace(logits=F.linear(x, self.table.weight))
