"""Rotations of Llama's family in checkpoints of transformers (`contract_hf`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from chimera.contract_hf import LLAMA_LIKE
from chimera.errors import UserError


class OfLlama:
    """What `position=rope` takes from a checkpoint."""

    @classmethod
    def hf_settings(cls, config: Mapping[str, Any], layer: int) -> dict[str, Any] | None:
        """Rotations of Llama's family and of Qwen3-Next."""
        if config["model_type"] not in {*LLAMA_LIKE, "qwen3_next"}:
            return None
        scaling = config.get("rope_scaling") or {"rope_type": config.get("rope_type", "default")}
        kind = scaling.get("rope_type", scaling.get("type")) if isinstance(scaling, dict) else ""
        if kind != "default":
            raise UserError(f"config.json has rope_type={kind}; weights of default are taken only")
        return {
            "base": float(config.get("rope_theta", 10000.0)),
            "fraction": float(config.get("partial_rotary_factor", 1.0)),
        }

    def hf_tensors(
        self, tensors: Mapping[str, Tensor], config: Mapping[str, Any]
    ) -> dict[str, Tensor]:
        """None: it has no parameters."""
        return {}
