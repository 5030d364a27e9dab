"""Weights of our parts back in a checkpoint of transformers, which computes the same logits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from chimera.config.from_hf import checkpoint_config
from chimera.errors import UserError
from chimera.model.to_hf import original
from tests.kit import close
from tests.model.test_from_hf import KINDS, ours, theirs

ONE = "qwen3_next"


@pytest.mark.parametrize(
    "kind", [k if k == ONE else pytest.param(k, marks=pytest.mark.slow) for k in KINDS]
)
def test_transformers_computes_the_logits_of_changed_weights(kind: str, tmp_path: Path) -> None:
    theirs(kind, tmp_path)
    model, file = ours(tmp_path, vocab_size=50), tmp_path / "model.safetensors"
    before = load_file(file)
    made = original(model, checkpoint_config(tmp_path), before, "like=x")
    assert made.keys() == before.keys()
    for name, tensor in made.items():  # rows beyond the vocabulary stay
        close(tensor, before[name], 1e-6)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1 + 0.1 * torch.randn_like(parameter))
    save_file(
        original(model, checkpoint_config(tmp_path), before, "like=x"), file, {"format": "pt"}
    )
    other = KINDS[kind][1].from_pretrained(tmp_path).eval()
    ids = torch.randint(50, (2, 21), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        close(model(ids).logits, other(ids).logits[..., :50], 1e-5)


def test_values_without_a_place_are_one_line(tmp_path: Path) -> None:
    theirs("qwen2", tmp_path)
    model, config = ours(tmp_path), checkpoint_config(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    model.backbone.blocks[0].mixer.o_proj.bias.data.fill_(0.1)
    with pytest.raises(UserError, match=r"no place for the values of .*o_proj\.bias"):
        original(model, config, tensors, "like=x")
