"""Dropout of adapters in the bodies of another library depends on the sample."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from chimera.adapter.lora import lora
from chimera.model.hf import HuggingFaceModel
from chimera.ops.dropout import sample_keys
from tests.model.hf_folders import folder

IDS = torch.randint(0, 5, (4, 9), generator=torch.Generator().manual_seed(0))
REAL = torch.arange(9) < torch.tensor([9, 5, 9, 7])[:, None]
DRAWS = sample_keys(0, 5, torch.tensor([31, 4, 77, 12]))


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder("llama", tmp_path_factory.mktemp("hf") / "llama")


def adapted(llama: Path) -> Any:
    torch.manual_seed(0)
    model = HuggingFaceModel(AutoModelForCausalLM.from_pretrained(llama), causal=True)
    lora(model, r=4, dropout=0.5)
    for module in model.modules():
        if hasattr(module, "call"):
            nn.init.normal_(module.B)
    return model.train()


def test_a_sample_gets_the_same_in_any_batch(llama: Path) -> None:
    model = adapted(llama)

    def logits(rows: slice, draws: Tensor = DRAWS) -> Tensor:
        return model(IDS[rows], REAL[rows], draws=draws[rows]).logits[REAL[rows]]

    whole = logits(slice(0, 4))
    halves = torch.cat([logits(slice(0, 2)), logits(slice(2, 4))])
    torch.testing.assert_close(whole, halves, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(whole, logits(slice(0, 4), DRAWS + 1))
