"""LoRA and the adapters built from it equal peft's, in outputs, gradients and files (SPEC A1)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from functools import partial
from pathlib import Path

import peft
import pytest
import torch
from peft.optimizers import create_loraplus_optimizer
from safetensors.torch import load_file
from torch import nn

from chimera.adapter.adalora import adalora
from chimera.adapter.dora import dora
from chimera.adapter.lora import lora
from chimera.adapter.lora_plus import lora_plus
from chimera.adapter.pissa import pissa
from chimera.adapter.shared.files import TENSORS, load, save, update_classes
from chimera.adapter.shared.low_rank import LowRank, adapted
from chimera.adapter.shared.merge import merge, prune
from chimera.adapter.sora import sora
from chimera.adapter.vera import vera
from chimera.config.settings import Optim
from chimera.contract_tests import zoo
from chimera.errors import UserError
from chimera.optim.optimizer import groups
from tests.adapter.kit import TARGETS, batches, bert, logits, of_peft, stir, updates
from tests.kit import close, uniform

SHARED = ["query", "value"]
ADAPTERS: dict[str, Callable[..., nn.Module]] = {
    "lora": partial(lora, r=4, alpha=6.0),
    "dora": partial(dora, r=4, alpha=6.0),
    "pissa": partial(pissa, r=4, alpha=6.0),
    "vera": partial(vera, r=6),
    "lora_plus": partial(lora_plus, r=4, alpha=6.0),
    "adalora": adalora,
    "sora": sora,
}
FACTORS = {"A": "lora_A.default.weight", "B": "lora_B.default.weight"}


def ours(name: str, scale: float = 0.0) -> nn.Module:
    model = ADAPTERS[name](bert(), targets=TARGETS, train=["classifier"])
    stir(model, scale)
    return model


def theirs(**options: object) -> nn.Module:
    """peft's LoRA."""
    config = peft.LoraConfig(
        **{"r": 4, "lora_alpha": 6, "target_modules": SHARED, **options}  # type: ignore[arg-type]
    )
    return peft.get_peft_model(bert(), config)


def compared(mine: nn.Module, other: nn.Module, parameters: dict[str, str]) -> None:
    """Logits, and gradients of parameters by our name and peft's."""
    batch, found = next(batches(1)), []
    for model in (mine, other):
        out = model.train()(**batch)
        out.loss.backward()
        found.append(out.logits)
    close(*found, 1e-9)
    for name, update in updates(mine).items():
        for own, others in parameters.items():
            grad = getattr(update, own).grad
            close(grad, of_peft(other, name, others).grad, 1e-9)
            assert grad.any()


@pytest.mark.parametrize("name", ["lora", "dora", "vera"])
def test_it_is_pefts(name: str) -> None:
    mine = ours(name, 0.1)
    names, constant = FACTORS, {}
    if name == "vera":
        config = peft.VeraConfig(r=6, target_modules=SHARED, modules_to_save=["classifier"])
        other = peft.get_peft_model(bert(), config).double()
        names = {"lambda_b": "vera_lambda_b.default", "lambda_d": "vera_lambda_d.default"}
        constant = {"A": "vera_A.default", "B": "vera_B.default"}
    else:
        other = theirs(modules_to_save=["classifier"], use_dora=name == "dora")
    if name == "dora":
        names = {**FACTORS, "magnitude": "lora_magnitude_vector.default.weight"}
    for layer, update in updates(mine).items():
        for own, others in {**names, **constant}.items():
            of_peft(other, layer, others).data.copy_(getattr(update, own))
    compared(mine, other, names)
    count = sum(p.numel() for p in mine.parameters() if p.requires_grad)
    assert count == other.get_nb_trainable_parameters()[0]


def test_pissa_is_pefts() -> None:
    """peft subtracts B₀ A₀ from the weight; both compute in float32 there."""
    config = peft.LoraConfig(r=4, lora_alpha=6, target_modules=SHARED, init_lora_weights="pissa")
    other, mine = peft.get_peft_model(bert().float(), config).double(), ours("pissa")
    for name, update in updates(mine).items():
        product = update.B0 @ update.A0
        a, b = (of_peft(other, name, path) for path in FACTORS.values())
        close(product, b @ a, 1e-6)
        left = of_peft(other, name, "base_layer.weight") + 1.5 * product
        close(left, adapted(mine)[name].base.weight, 1e-6)
        residual = adapted(mine)[name].base.weight - 1.5 * product
        of_peft(other, name, "base_layer.weight").data.copy_(residual)
        for part, path in FACTORS.items():
            getattr(update, part).data.add_(0.1 * torch.randn_like(getattr(update, part)))
            of_peft(other, name, path).data.copy_(getattr(update, part))
    compared(mine, other, FACTORS)


def test_lora_plus_has_pefts_rates() -> None:
    mine = ours("lora_plus")
    optimizer = create_loraplus_optimizer(
        theirs(), torch.optim.AdamW, lr=1e-3, loraplus_lr_ratio=16.0
    )
    found = groups(mine, Optim(lr=1e-3))
    rates = {id(p): group.lr for group in found for p in group.parameters}
    for update in updates(mine).values():
        assert (rates[id(update.A)], rates[id(update.B)]) == (1e-3, 1.6e-2)
    adapter = {group.lr: group.count for group in found if group.component == "adapter"}
    for rate, count in adapter.items():
        same = (group for group in optimizer.param_groups if group["lr"] == rate)
        assert count == sum(p.numel() for group in same for p in group["params"])


def test_a_starts_as_a_linear_layer_and_b_at_zero() -> None:
    """Kaiming's bound with a = √5 is 1/√d_in, for any rank and output width."""
    update = LowRank(nn.Linear(25, 3), 4000, 1.0, 0.0)
    uniform(update.A, -1 / 5, 1 / 5)
    assert not update.B.any()


def test_saidl_counts() -> None:
    """24 layers of 768 × 768 at rank 8 and a classifier of two classes (SAIDL Table 10)."""
    with torch.device("meta"):
        body = nn.ModuleDict(
            {
                f"layer_{n}": nn.ModuleDict({k: nn.Linear(768, 768) for k in ("query", "value")})
                for n in range(12)
            }
        )
        model = nn.ModuleDict({"body": body, "classifier": nn.Linear(768, 2)})
        counts = [
            sum(p.numel() for p in make(deepcopy(model)).parameters() if p.requires_grad)
            for make in (lora, sora)
        ]
    assert counts == [296_450, 296_642]


@pytest.mark.parametrize("name", ADAPTERS)
def test_it_starts_as_the_model_itself_and_merges(name: str) -> None:
    close(logits(ours(name)), logits(bert()), 1e-12 if name in ("dora", "pissa") else 0.0)
    model = ADAPTERS[name](bert(), targets=TARGETS, train=[])
    stir(model, 0.1)
    want = logits(model)
    assert not torch.allclose(want, logits(bert()))
    done = merge(model)
    close(logits(model), want, 1e-12)
    assert (len(done.merged), done.kept, adapted(model)) == (4, {}, {})
    assert set(model.state_dict()) == set(bert().state_dict())


@pytest.mark.parametrize("name", ADAPTERS)
def test_files_are_read_by_peft_and_by_us(name: str, tmp_path: Path) -> None:
    model = ours(name, 0.1)
    with torch.no_grad():
        model.classifier.weight.add_(1.0)
    save(model, tmp_path)
    want = logits(model)
    close(logits(load(bert(), tmp_path)), want, 1e-12)
    assert not any("embeddings" in key for key in load_file(tmp_path / TENSORS))
    if name != "sora":  # peft has none; pruned, it is a LoRA
        other = peft.PeftModel.from_pretrained(bert(), tmp_path).double()
        close(logits(other), want, 1e-6 if name in ("pissa", "vera") else 1e-9)
    close(logits(load(model, tmp_path)), want, 1e-12)  # in place of its own


@pytest.mark.parametrize("scaled", [False, True])
def test_we_load_pefts(scaled: bool, tmp_path: Path) -> None:
    """Also scaled by the root of the rank."""
    other = theirs(modules_to_save=["classifier"], use_rslora=scaled)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.1 if parameter.requires_grad else 0.0)
    other.save_pretrained(tmp_path)
    again = load(bert(), tmp_path)
    close(logits(again), logits(other), 1e-9)
    assert {update.scale for update in updates(again).values()} == {6 / (2 if scaled else 4)}
    assert all(
        p.requires_grad == (".update." in n or n.startswith("classifier"))
        for n, p in again.named_parameters()
    )


@pytest.mark.parametrize("make", [adalora, sora])
def test_a_pruned_adapter_is_smaller_equal_and_a_lora_to_peft(
    make: Callable[..., nn.Module], tmp_path: Path
) -> None:
    model = make(bert(), r=8, targets=TARGETS, train=["classifier"])
    stir(model)
    ranks = [8, 5, 0, 1]
    with torch.no_grad():
        for rank, update in zip(ranks, updates(model).values(), strict=True):
            update.diagonal()[rank:] = 0.0
    before, size = logits(model), sum(p.numel() for p in model.parameters())
    assert list(prune(model).values()) == ranks
    close(logits(model), before, 1e-12)
    assert sum(p.numel() for p in model.parameters()) < size
    assert [u.r for u in updates(model).values()] == [8, 5, 1]
    save(model, tmp_path)
    close(logits(peft.PeftModel.from_pretrained(bert(), tmp_path)), before, 1e-9)
    close(logits(load(bert(), tmp_path)), before, 1e-12)


def test_what_does_not_fit_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"adapter_config\.json is missing"):
        load(bert(), tmp_path)
    save(lora(bert(), targets=["*.query"]), tmp_path)
    with pytest.raises(UserError, match=r"is for bert\.encoder.*, which the model does not have"):
        load(nn.ModuleDict({"query": nn.Linear(16, 16)}), tmp_path)


def test_every_update_is_known_by_the_kind_in_its_file() -> None:
    for name in zoo.names("adapter"):
        with suppress(UserError):  # an adapter that rejects Chimera's models
            for layer in adapted(zoo.model(adapter=name)).values():
                assert update_classes()[layer.update.peft_type] is type(layer.update)
