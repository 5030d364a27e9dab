"""What llama.cpp computes from a GGUF file, in float64: an oracle that reads nothing but the file.

Written from the architectures' definitions: pre-norm blocks, rotary positions, grouped heads.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Keys = dict[str, Any]


def read(file: Path) -> tuple[Keys, dict[str, Tensor]]:
    """Settings without the architecture's prefix, and every tensor in float64."""
    import gguf

    reader = gguf.GGUFReader(file)
    keys: Keys = {name: field.contents() for name, field in reader.fields.items()}
    prefix = f"{keys['general.architecture']}."
    keys |= {name.removeprefix(prefix): v for name, v in keys.items() if name.startswith(prefix)}
    tensors = {
        t.name: torch.tensor(gguf.quants.dequantize(t.data, t.tensor_type)).double()
        for t in reader.tensors
    }
    return keys, tensors


def logits(file: Path, ids: Tensor) -> Tensor:
    """Logits [b t v] of token ids [b t]."""
    keys, tensors = read(file)
    x = tensors["token_embd.weight"][ids]
    for number in range(keys["block_count"]):
        names = [name for name in tensors if name.startswith(f"blk.{number}.")]
        layer = {name.split(".", 2)[2].removesuffix(".weight"): tensors[name] for name in names}
        x = x + attention(layer, keys, norm(x, layer["attn_norm"], keys))
        x = x + feed(layer, keys, norm(x, layer["ffn_norm"], keys))
    head = tensors.get("output.weight", tensors["token_embd.weight"])
    return norm(x, tensors["output_norm.weight"], keys) @ head.T


def norm(x: Tensor, weight: Tensor, keys: Keys) -> Tensor:
    eps = keys["attention.layer_norm_rms_epsilon"]
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * weight


def linear(layer: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    return F.linear(x, layer[name], layer.get(f"{name}.bias"))


def attention(layer: dict[str, Tensor], keys: Keys, x: Tensor) -> Tensor:
    h, g = keys["attention.head_count"], keys["attention.head_count_kv"]
    q, k, v = (
        linear(layer, name, x).unflatten(-1, (heads, -1)).transpose(1, 2)
        for name, heads in (("attn_q", h), ("attn_k", g), ("attn_v", g))
    )
    q, k = rotated(q, keys), rotated(k, keys)
    k, v = k.repeat_interleave(h // g, 1), v.repeat_interleave(h // g, 1)
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2)
    if "attn_sub_norm" in layer:
        y = norm(y, layer["attn_sub_norm"], keys)
    return linear(layer, "attn_output", y)


def rotated(x: Tensor, keys: Keys) -> Tensor:
    half = keys["rope.dimension_count"] // 2
    assert x.shape[-1] == 2 * half
    theta = keys["rope.freq_base"] ** (-torch.arange(half).double() / half)
    angle = torch.arange(x.shape[-2])[:, None] * theta / keys.get("rope.scaling.factor", 1.0)
    apart = keys["general.architecture"] == "bitnet"
    a, b = x.chunk(2, -1) if apart else (x[..., ::2], x[..., 1::2])
    turned = a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()
    return torch.cat(turned, -1) if apart else torch.stack(turned, -1).flatten(-2)


def feed(layer: dict[str, Tensor], keys: Keys, x: Tensor) -> Tensor:
    up = linear(layer, "ffn_up", x)
    if keys["general.architecture"] == "arcee":
        y = F.relu(up).square()
    else:
        y = F.silu(linear(layer, "ffn_gate", x)) * up
    if "ffn_sub_norm" in layer:
        y = norm(y, layer["ffn_sub_norm"], keys)
    assert y.shape[-1] == keys["feed_forward_length"]
    return linear(layer, "ffn_down", y)
