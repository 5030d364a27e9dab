"""Layers of Mamba-2 and Qwen3-Next (linear) in checkpoints of transformers (`contract_hf`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from chimera.contract_hf import unsupported
from chimera.errors import UserError


class OfMamba2:
    """What `mixer=mamba2` takes from a checkpoint."""

    heads: int

    @classmethod
    def hf_settings(cls, config: Mapping[str, Any], layer: int) -> dict[str, Any] | None:
        """Layers of Mamba-2."""
        if config["model_type"] != "mamba2":
            return None
        wanted = {"use_bias": False, "use_conv_bias": True, "hidden_act": "silu"}
        if other := unsupported(config, **wanted, layer_norm_epsilon=1e-5):
            raise UserError(f"config.json has {other}, which mixer=mamba2 lacks")
        return {
            "state": int(config["state_size"]),
            "expand": int(config["expand"]),
            "head_dim": int(config["head_dim"]),
            "groups": int(config["n_groups"]),
            "conv": int(config["conv_kernel"]),
        }

    def hf_tensors(
        self, tensors: Mapping[str, Tensor], config: Mapping[str, Any]
    ) -> dict[str, Tensor]:
        """One layer's tensors under our names; W_in and W_Δ are one matrix there."""
        rows = len(tensors["mixer.in_proj.weight"]) - self.heads
        return {
            "in_proj.weight": tensors["mixer.in_proj.weight"][:rows],
            "dt_proj.weight": tensors["mixer.in_proj.weight"][rows:],
            "conv.weight": tensors["mixer.conv1d.weight"].squeeze(1),
            "conv.bias": tensors["mixer.conv1d.bias"],
            "decay.A_log": tensors["mixer.A_log"],
            "decay.dt_bias": tensors["mixer.dt_bias"],
            "D": tensors["mixer.D"],
            "norm": tensors["mixer.norm.weight"],
            "out_proj.weight": tensors["mixer.out_proj.weight"],
        }


class OfQwen3Next:
    """What `mixer=gated_delta` takes from a checkpoint."""

    heads: int
    key_heads: int
    k_dim: int
    v_dim: int

    @classmethod
    def hf_settings(cls, config: Mapping[str, Any], layer: int) -> dict[str, Any] | None:
        """Linear layers of Qwen3-Next."""
        if config["model_type"] != "qwen3_next":
            return None
        if config["layer_types"][layer] != "linear_attention":
            return None
        heads = int(config["linear_num_value_heads"])
        dim = config["hidden_size"]
        return {
            "heads": heads,
            "key_heads": int(config["linear_num_key_heads"]),
            "key_expand": config["linear_key_head_dim"] * heads / dim,
            "value_expand": config["linear_value_head_dim"] * heads / dim,
            "conv": int(config["linear_conv_kernel_dim"]),
        }

    def hf_tensors(
        self, tensors: Mapping[str, Tensor], config: Mapping[str, Any]
    ) -> dict[str, Tensor]:
        """Theirs puts the rows of a key head together: q, k, its v and z; β and α."""
        g = self.key_heads
        per = self.heads // self.key_heads
        widths = (self.k_dim, self.k_dim, per * self.v_dim, per * self.v_dim)
        rows = tensors["linear_attn.in_proj_qkvz.weight"].unflatten(0, (g, -1)).split(widths, 1)
        gates = tensors["linear_attn.in_proj_ba.weight"].unflatten(0, (g, -1)).split((per, per), 1)
        names = ("q_proj", "k_proj", "v_proj", "z_proj", "beta_proj", "decay_proj")
        found = {f"{n}.weight": w.flatten(0, 1) for n, w in zip(names, rows + gates, strict=True)}
        return found | {
            "conv.weight": tensors["linear_attn.conv1d.weight"].squeeze(1),
            "decay.A_log": tensors["linear_attn.A_log"],
            "decay.dt_bias": tensors["linear_attn.dt_bias"],
            "norm.weight": tensors["linear_attn.norm.weight"],
            "o_proj.weight": tensors["linear_attn.out_proj.weight"],
        }
