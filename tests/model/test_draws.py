"""Dropout of whole models depends on the sample, not on its batch, its rank or recomputation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from chimera.adapter.lora import lora
from chimera.contract_tests import zoo
from chimera.model.classifier import Classifier
from chimera.model.hf import HuggingFaceModel
from chimera.ops.dropout import counters, draws, sample_keys
from tests.model.hf_folders import folder

IDS = torch.randint(0, 32, (4, 12), generator=torch.Generator().manual_seed(0))
REAL = torch.arange(12) < torch.tensor([12, 7, 12, 9])[:, None]
DRAWS = sample_keys(counters(0, 5, torch.tensor([31, 4, 77, 12])))


def model(choices: dict[str, str] | None = None, *, dropout: float = 0.4, **settings: Any) -> Any:
    """A tiny model in training, without the dropout that torch draws."""
    made = zoo.build(replace(zoo.TINY, dropout=dropout, **settings), choices or {}).train()
    for module in made.modules():
        if getattr(module, "torch_draws", ""):
            module.dropout = 0.0  # type: ignore[assignment]
    return made


def hidden(made: Any, rows: list[int], *, mask: bool = True, shift: int = 0) -> Tensor:
    """Hidden states of some samples at their real tokens; `shift` pads them on the left."""
    ids, real = IDS[rows], REAL[rows]
    if shift:
        ids = torch.cat([ids.new_zeros(len(rows), shift), ids], 1)
        real = torch.cat([real.new_zeros(len(rows), shift), real], 1)
    y = made.backbone(ids, real if mask or shift else None, draws=DRAWS[rows]).y
    return torch.cat([y[i, m] for i, m in enumerate(real)])


CHOICES = [(group, name) for group in ("mixer", "ffn") for name in zoo.distinct(group)]


@pytest.mark.sampled(5, each=("group",))
@pytest.mark.parametrize(("group", "name"), CHOICES)
def test_a_sample_gets_the_same_in_any_batch_at_any_place(group: str, name: str) -> None:
    made = model({group: name}, loops=1 + (name == "attention"))
    for module in made.modules():
        if hasattr(module, "capacity"):
            module.capacity = {True: None, False: None}  # which tokens drop depends on the batch
    whole = hidden(made, [0, 1, 2, 3])
    halves = torch.cat([hidden(made, [0, 1]), hidden(made, [2, 3])])
    torch.testing.assert_close(whole, halves, rtol=1e-4, atol=1e-5)
    padded = hidden(made, [0, 1, 2, 3], shift=3)
    torch.testing.assert_close(whole, padded, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        other = made.backbone(IDS, REAL, draws=DRAWS + 1).y
    assert not torch.allclose(torch.cat([y[m] for y, m in zip(other, REAL, strict=True)]), whole)


@pytest.mark.parametrize("loops", [1, 2])
def test_recomputation_draws_the_same(loops: int) -> None:
    gradients = []
    for checkpointing in (False, True):
        made = model({"ffn": "moe"}, loops=loops, gradient_checkpointing=checkpointing)
        lora(made, r=2, dropout=0.3, targets=["*.q_proj", "*.up"])
        for update in (m for m in made.modules() if hasattr(m, "B") and hasattr(m, "call")):
            nn.init.ones_(update.B)
        hidden(made, [0, 1, 2, 3]).square().sum().backward()
        gradients.append({n: p.grad for n, p in made.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys() != set()
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name], rtol=1e-5, atol=1e-6)


def test_layers_loops_and_calls_draw_on_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """No two masks of a model are alike: of the embeddings, and of two branches in each layer."""
    masks: list[Tensor] = []

    def noted(keys: Tensor, width: int, call: int) -> Tensor:
        masks.append(draws(keys, width, call))
        return masks[-1]

    monkeypatch.setattr("chimera.ops.dropout.draws", noted)
    hidden(model({"mixer": "retnet"}, loops=2), [0, 1, 2, 3], mask=False)
    assert len(masks) == 1 + 8
    for i, first in enumerate(masks):
        for second in masks[:i]:
            alike = (first < 0) == (second < 0)
            assert float(alike.float().mean()) < 0.65  # 0.5 by chance


@pytest.mark.parametrize("body", ["ours", "llama"])
def test_an_adapter_draws_by_sample_too(body: str, tmp_path: Path) -> None:
    made = model(dropout=0.0)
    if body == "llama":
        theirs = AutoModelForCausalLM.from_pretrained(folder(body, tmp_path))
        made = HuggingFaceModel(theirs, causal=True).train()
    lora(made, r=4, dropout=0.5, targets=["*.q_proj"])
    for module in made.modules():
        if hasattr(module, "call"):
            nn.init.normal_(module.B)

    def logits(rows: slice = slice(4), **given: Any) -> Tensor:
        return made(IDS[rows] % 9, REAL[rows], **given).logits[REAL[rows]]

    whole = logits(draws=DRAWS)
    halves = [logits(slice(i, i + 2), draws=DRAWS[i : i + 2]) for i in (0, 2)]
    torch.testing.assert_close(whole, torch.cat(halves), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(whole, logits(draws=DRAWS + 1))
    assert not torch.allclose(logits(), logits())  # torch draws


def test_the_head_of_a_classifier_draws_by_sample() -> None:
    made = Classifier(model(dropout=0.0).backbone, 3, dropout=0.5).train()
    whole = made(IDS, REAL, draws=DRAWS).logits
    halves = [made(IDS[i : i + 2], REAL[i : i + 2], draws=DRAWS[i : i + 2]).logits for i in (0, 2)]
    torch.testing.assert_close(whole, torch.cat(halves), rtol=1e-5, atol=1e-6)
