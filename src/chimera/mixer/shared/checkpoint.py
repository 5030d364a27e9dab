"""Layers of softmax attention in checkpoints of transformers (`contract_hf`).

    self_attn.{q,k,v,o}_proj.weight, .bias;  self_attn.{q,k}_norm.weight with a norm of both

Theirs rotates channel i of a head with channel i + width/2, ours neighbours: rows of W_q and W_k,
and the norms' weights, change their order. A score is a sum over channels, so nothing else changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from chimera.errors import UserError
from chimera.ops.rotary import pairs_together

#: ε of `model.qk_norm`.
QK_EPS = 1e-6


def heads_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Heads, key-value heads and width of a head; null where they are those of the model.

    Raises:
        UserError: attention within a window, or a norm of queries and keys with another ε.
    """
    if config.get("sliding_window") and config.get("use_sliding_window", True):
        raise UserError(
            f"config.json has sliding_window={config['sliding_window']}; weights are taken for"
            " attention over all tokens only"
        )
    heads = int(config["num_attention_heads"])
    dim = int(config["hidden_size"])
    width = int(config.get("head_dim", dim // heads))
    groups = int(config.get("num_key_value_heads", heads))
    return {
        "heads": heads,
        "kv_heads": None if groups == heads else groups,
        "head_dim": None if width * heads == dim else width,
    }


def rotated(config: Mapping[str, Any], width: int) -> int:
    """Channels of a head that are rotated."""
    return int(width * config.get("partial_rotary_factor", 1.0))


def keys_and_values(
    tensors: Mapping[str, Tensor], config: Mapping[str, Any], *, groups: int, width: int, bias: bool
) -> dict[str, Tensor]:
    """Parameters of the projections of keys, values and outputs, and of the norms of q and k."""
    turned = rotated(config, width)
    found = {f"{n}_proj.weight": tensors[f"self_attn.{n}_proj.weight"] for n in "kvo"}
    if bias:
        found |= {f"{n}_proj.bias": tensors[f"self_attn.{n}_proj.bias"] for n in "kv"}
        last = "self_attn.o_proj.bias"  # Qwen2 has none here
        zeros = torch.zeros(len(found["o_proj.weight"]))
        found["o_proj.bias"] = tensors.get(last, zeros)
    for name in ("k_proj.weight", "k_proj.bias"):
        if name in found:
            found[name] = pairs_together(found[name], groups, turned)
    for n in "qk":
        name = f"self_attn.{n}_norm.weight"
        if name in tensors:
            if config["rms_norm_eps"] != QK_EPS:
                raise UserError(
                    f"config.json has rms_norm_eps={config['rms_norm_eps']} in norms of queries and"
                    f" keys, which have {QK_EPS} here"
                )
            found[f"position.{n}_weight"] = pairs_together(
                centred(tensors[name], config), 1, turned
            )
    return found


def centred(weight: Tensor, config: Mapping[str, Any]) -> Tensor:
    """Weight of an RMSNorm; Qwen3-Next stores its difference from 1."""
    return weight + 1 if config["model_type"] == "qwen3_next" else weight
