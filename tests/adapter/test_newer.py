"""DoRA, PiSSA, VeRA, LoRA+ against peft's with copied weights: outputs, gradients, files, rates."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from peft.optimizers import create_loraplus_optimizer
from torch import nn

from chimera.adapter.dora import dora
from chimera.adapter.lora_plus import lora_plus
from chimera.adapter.pissa import pissa
from chimera.adapter.shared.files import load, save
from chimera.adapter.shared.low_rank import adapted
from chimera.adapter.shared.merge import merge
from chimera.adapter.vera import vera
from chimera.config.settings import Optim
from chimera.optim.groups import groups
from tests.adapter.kit import TARGETS, batches, bert, stir, theirs, updates
from tests.kit import close

SHARED = ["query", "value"]
ADAPTERS: dict[str, Callable[..., nn.Module]] = {
    "dora": partial(dora, r=4, alpha=6.0),
    "pissa": partial(pissa, r=4, alpha=6.0),
    "vera": partial(vera, r=6),
    "lora_plus": partial(lora_plus, r=4, alpha=6.0),
}


def ours(name: str) -> nn.Module:
    return ADAPTERS[name](bert(), targets=TARGETS, train=["classifier"])


def compared(mine: nn.Module, other: nn.Module, parameters: dict[str, str]) -> None:
    """Logits, and gradients of parameters by our name and peft's."""
    batch, found = next(batches(1)), []
    for model in (mine, other):
        model.train()
        out = model(**batch)
        out.loss.backward()
        found.append(out.logits)
    close(*found, 1e-9)
    for name, update in updates(mine).items():
        for own, others in parameters.items():
            grad = getattr(update, own).grad
            close(grad, of_peft(other, name, others).grad, 1e-9)
            assert grad.any()


def of_peft(model: nn.Module, layer: str, path: str) -> Any:
    found: Any = model.get_submodule(f"base_model.model.{layer}")
    for step in path.split("."):
        found = found[step] if step == "default" else getattr(found, step)
    return found


def test_dora_is_pefts() -> None:
    mine = ours("dora")
    stir(mine, 0.1)
    config = peft.LoraConfig(
        r=4, lora_alpha=6, target_modules=SHARED, modules_to_save=["classifier"], use_dora=True
    )
    other = peft.get_peft_model(bert(), config)
    names = {
        "A": "lora_A.default.weight",
        "B": "lora_B.default.weight",
        "magnitude": "lora_magnitude_vector.default.weight",
    }
    for name, update in updates(mine).items():
        for own, others in names.items():
            of_peft(other, name, others).data.copy_(getattr(update, own))
    compared(mine, other, names)


def test_pissa_is_pefts() -> None:
    """peft subtracts B₀ A₀ from the weight; both compute in float32 there."""
    config = peft.LoraConfig(r=4, lora_alpha=6, target_modules=SHARED, init_lora_weights="pissa")
    other, mine = peft.get_peft_model(bert().float(), config).double(), ours("pissa")
    for name, update in updates(mine).items():
        product = update.B0 @ update.A0
        close(product, theirs(other, name, "B") @ theirs(other, name, "A"), 1e-6)
        left = of_peft(other, name, "base_layer.weight") + 1.5 * product
        close(left, adapted(mine)[name].base.weight, 1e-6)
        residual = adapted(mine)[name].base.weight - 1.5 * product
        of_peft(other, name, "base_layer.weight").data.copy_(residual)
        for part in ("A", "B"):
            getattr(update, part).data.add_(0.1 * torch.randn_like(getattr(update, part)))
            theirs(other, name, part).data.copy_(getattr(update, part))
    compared(mine, other, {"A": "lora_A.default.weight", "B": "lora_B.default.weight"})


def test_vera_is_pefts() -> None:
    mine = ours("vera")
    stir(mine)
    config = peft.VeraConfig(r=6, target_modules=SHARED, modules_to_save=["classifier"])
    other = peft.get_peft_model(bert(), config).double()
    names = {"lambda_b": "vera_lambda_b.default", "lambda_d": "vera_lambda_d.default"}
    for name, update in updates(mine).items():
        for part in ("A", "B"):
            of_peft(other, name, f"vera_{part}.default").copy_(getattr(update, part))
        for own, others in names.items():
            of_peft(other, name, others).data.copy_(getattr(update, own))
    compared(mine, other, names)
    assert sum(p.numel() for n, p in mine.named_parameters() if "lambda" in n) == 4 * (16 + 6)


def test_lora_plus_has_pefts_rates() -> None:
    mine = ours("lora_plus")
    config = peft.LoraConfig(r=4, lora_alpha=6, target_modules=SHARED)
    optimizer = create_loraplus_optimizer(
        peft.get_peft_model(bert(), config), torch.optim.AdamW, lr=1e-3, loraplus_lr_ratio=16.0
    )
    found = groups(mine, Optim(lr=1e-3))
    rates = {id(p): group.lr for group in found for p in group.parameters}
    for update in updates(mine).values():
        assert (rates[id(update.A)], rates[id(update.B)]) == (1e-3, 1.6e-2)
    adapter = {group.lr: group.count for group in found if group.component == "adapter"}
    for rate, count in adapter.items():
        same = (group for group in optimizer.param_groups if group["lr"] == rate)
        assert count == sum(p.numel() for group in same for p in group["params"])


@pytest.mark.parametrize("name", ADAPTERS)
def test_it_starts_as_the_model_itself_and_merges(name: str) -> None:
    model, batch = ours(name).eval(), next(batches(1))
    close(model(**batch).logits, bert().eval()(**batch).logits, 1e-12)
    stir(model, 0.1)
    want = model(**batch).logits
    assert not torch.allclose(want, bert().eval()(**batch).logits)
    merged = deepcopy(model)
    assert not merge(merged).kept
    close(merged(**batch).logits, want, 1e-9)


@pytest.mark.parametrize("name", ADAPTERS)
def test_files_are_read_by_peft_and_by_us(name: str, tmp_path: Path) -> None:
    model, batch = ours(name), next(batches(1))
    stir(model, 0.1)
    save(model, tmp_path)
    want = model.eval()(**batch).logits
    close(load(bert(), tmp_path).eval()(**batch).logits, want, 1e-9)
    other = peft.PeftModel.from_pretrained(bert(), tmp_path)
    close(other.double().eval()(**batch).logits, want, 1e-6)
