"""Tiny Hugging Face encoder for comparisons with peft."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification

from chimera.adapter.shared.low_rank import LowRank, adapted

TARGETS = ["*.query", "*.value"]


def bert() -> BertForSequenceClassification:
    """Two layers of width 16 in float64, no dropout."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=24, max_position_embeddings=16, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return BertForSequenceClassification(config).double()


def batches(count: int, seed: int = 1) -> Iterator[dict[str, Tensor]]:
    """Tokens with a learnable label: the first token is below 20."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        ids = torch.randint(40, (8, 6), generator=generator)
        yield {"input_ids": ids, "labels": (ids[:, 0] < 20).long()}


def logits(model: nn.Module) -> Tensor:
    """Of the first batch, in evaluation."""
    found: Tensor = model.eval()(**next(batches(1))).logits
    return found


def stir(model: nn.Module, scale: float = 0.3) -> None:
    """Randomise updates, which are initially zero, so that errors show."""
    torch.manual_seed(5)
    with torch.no_grad():
        for update in updates(model).values():
            for parameter in update.parameters():
                parameter.add_(scale * torch.randn_like(parameter))


def updates(model: nn.Module) -> dict[str, LowRank]:
    return {name: layer.update for name, layer in adapted(model).items()}


def of_peft(model: nn.Module, layer: str, path: str) -> Any:
    """peft's parameter at a dotted path in a layer, e.g. `lora_A.default.weight`."""
    found: Any = model.get_submodule(f"base_model.model.{layer}")
    for step in path.split("."):
        found = found[step] if step == "default" else getattr(found, step)
    return found
