"""Stands for bitsandbytes, which few machines have: 4-bit layers with its names of tensors."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

LEVELS = 7


class Params4bit(nn.Parameter):
    """Codes of two weights a byte [n 1], with their scale and shape."""

    quant_state: Any

    @classmethod
    def of(cls, codes: Tensor, scale: Tensor, shape: Tensor) -> Params4bit:
        made = torch.Tensor._make_subclass(cls, codes, False)
        made.quant_state = SimpleNamespace(scale=scale, shape=torch.Size(shape.tolist()))
        return made

    @classmethod
    def from_prequantized(cls, data: Tensor, stats: dict[str, Tensor], device: Any) -> Params4bit:
        return cls.of(data.to(device), stats["absmax"], stats["quant_state.bitsandbytes__nf4"])


class Linear4bit(nn.Linear):
    """Rounds the weights of a layer to 15 levels."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__(layer.in_features, layer.out_features, layer.bias is not None)
        self.bias = layer.bias
        scale = layer.weight.detach().abs().max()
        levels = (layer.weight.detach() / scale * LEVELS + LEVELS).round().flatten().byte()
        codes = (levels[::2] << 4 | levels[1::2])[:, None]
        self.weight = Params4bit.of(codes, scale, torch.tensor(layer.weight.shape))

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        state = self.weight.quant_state
        destination[f"{prefix}weight.absmax"] = state.scale
        destination[f"{prefix}weight.quant_state.bitsandbytes__nf4"] = torch.tensor(state.shape)

    def forward(self, x: Tensor) -> Tensor:
        weight = dequantize_4bit(self.weight, self.weight.quant_state)
        return F.linear(x.to(weight.dtype), weight, self.bias).to(x.dtype)


def dequantize_4bit(codes: Tensor, state: Any) -> Tensor:
    levels = torch.stack([codes.flatten() >> 4, codes.flatten() & 15], -1).to(state.scale.dtype)
    return ((levels - LEVELS) * (state.scale / LEVELS)).reshape(state.shape)


def rounded(model: Any) -> Any:
    """Round all linear layers but the head of a model of transformers, as it does itself."""
    head = model.get_output_embeddings()
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and child is not head:
                setattr(parent, name, Linear4bit(child))
    model.config.quantization_config = {}
    return model


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `import bitsandbytes` find this module."""
    package, functional = ModuleType("bitsandbytes"), ModuleType("bitsandbytes.functional")
    functional.dequantize_4bit = dequantize_4bit  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "bitsandbytes", package)
    monkeypatch.setitem(sys.modules, "bitsandbytes.functional", functional)
