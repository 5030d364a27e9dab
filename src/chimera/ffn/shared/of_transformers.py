"""Mixtures of experts of Qwen3-Next in checkpoints of transformers (`contract_hf`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from chimera.contract_hf import unsupported
from chimera.errors import UserError


class OfQwen3Next:
    """What `ffn=moe_shared` takes from a checkpoint."""

    experts: nn.ModuleList

    @classmethod
    def hf_settings(cls, config: Mapping[str, Any], layer: int) -> dict[str, Any] | None:
        """Experts of Qwen3-Next, gated by SiLU, with one shared expert of their width."""
        if config["model_type"] != "qwen3_next":
            return None
        width = config["moe_intermediate_size"]
        if other := unsupported(
            config, hidden_act="silu", decoder_sparse_step=1, shared_expert_intermediate_size=width
        ) or (config.get("mlp_only_layers") and "mlp_only_layers"):
            raise UserError(f"config.json has {other}, which ffn=moe_shared lacks")
        return {
            "expert": {"expand": width / config["hidden_size"]},
            "experts": int(config["num_experts"]),
            "top_k": int(config["num_experts_per_tok"]),
            "scores": "softmax",
            "normalise": bool(config.get("norm_topk_prob", True)),
            "rate": 0.0,
            "shared_gate": True,
            "balance_loss": True,
        }

    def hf_tensors(
        self, tensors: Mapping[str, Tensor], config: Mapping[str, Any]
    ) -> dict[str, Tensor]:
        """Router, experts and the shared expert under our names."""
        names = {f"experts.{i}": f"mlp.experts.{i}" for i in range(len(self.experts))}
        found = {
            "router.weight": tensors["mlp.gate.weight"],
            "shared_gate.weight": tensors["mlp.shared_expert_gate.weight"],
        }
        for ours, theirs in (names | {"shared.0": "mlp.shared_expert"}).items():
            halves = [tensors[f"{theirs}.{name}_proj.weight"] for name in ("up", "gate")]
            found[f"{ours}.up.weight"] = torch.cat(halves)
            found[f"{ours}.down.weight"] = tensors[f"{theirs}.down_proj.weight"]
        return found
