"""Frozen linear layers of a Hugging Face model with weights of 4 bits (QLoRA, arXiv 2305.14314).

Each weight is one of 16 quantiles of a normal distribution (nf4), times a scale of each 64 weights,
which has 8 bits (double quantisation). transformers replaces all linear layers but the head by
those of bitsandbytes while it loads. Products are in bf16, as are embeddings, norms and head.

A checkpoint holds codes and scales as bitsandbytes names them, which no module of torch reads.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chimera import world
from chimera.adapter.shared.low_rank import substitute, widths
from chimera.ops.four_bit import dense


def options() -> dict[str, Any]:
    """Arguments of `from_pretrained`. A GPU rounds the weights, as a CPU takes seconds a matrix."""
    from transformers import BitsAndBytesConfig

    device = f"cuda:{world.local_rank()}" if torch.cuda.is_available() else "cpu"
    rounding = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )
    return {"quantization_config": rounding, "device_map": {"": device}}


def rounded(model: Any) -> Any:
    """A copy with 4-bit weights of a model that was not loaded from files."""
    return type(model).from_pretrained(
        None, config=model.config, state_dict=model.state_dict(), dtype=model.dtype, **options()
    )


def prepare(model: Any) -> Any:
    """Let a model's layers read checkpoints; move it to the CPU, where models are built."""
    del model.config.quantization_config  # of a file, of which transformers would expect codes
    for layer in layers(model):
        layer.register_load_state_dict_pre_hook(_read)
    return model.to("cpu")


def layers(model: nn.Module) -> list[Any]:
    """Layers with weights of 4 bits; not what an adapter has put around them."""
    return [m for m in model.modules() if hasattr(m._parameters.get("weight"), "quant_state")]


def outline(model: Any) -> Any:
    """Give a model on the meta device the shapes and bytes of 4-bit weights."""
    head = model.get_output_embeddings()
    found = [module for module in model.modules() if module is not head and widths(module)]
    substitute(model, {layer: _Outline(layer) for layer in found})
    return model


def widen(model: nn.Module) -> None:
    """Replace layers by torch's, with the weights that they compute with, for an export."""
    substitute(model, {layer: _widened(layer) for layer in layers(model)})


class _Outline(nn.Linear):
    """Stands for a layer of bitsandbytes on the meta device."""

    def __init__(self, layer: nn.Module) -> None:
        sizes = widths(layer)
        assert sizes is not None
        super().__init__(*sizes, bias=getattr(layer, "bias", None) is not None)
        codes = torch.empty(-(-self.weight.numel() // 2), 1, dtype=torch.uint8)
        state = SimpleNamespace(shape=self.weight.shape)
        self.weight = nn.Parameter(codes, requires_grad=False)
        setattr(self.weight, "quant_state", state)  # noqa: B010

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, x.new_empty(self.out_features, self.in_features), self.bias)


def _widened(layer: Any) -> nn.Linear:
    made = nn.Linear(layer.in_features, layer.out_features, device="meta")
    made.weight = nn.Parameter(dense(layer.weight), requires_grad=False)
    made.bias = layer.bias
    return made.train(layer.training)


def _read(layer: Any, tensors: dict[str, Tensor], prefix: str, *_: Any) -> None:
    """Take codes and scales from a checkpoint; a hook before torch reads the layer's tensors."""
    start = f"{prefix}weight."
    scales = {k.removeprefix(start): tensors.pop(k) for k in [*tensors] if k.startswith(start)}
    if scales:
        weight = layer.weight
        codes = tensors[f"{prefix}weight"]
        layer.weight = type(weight).from_prequantized(codes, scales, device=weight.device)
        layer.quant_state = layer.weight.quant_state
