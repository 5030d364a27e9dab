"""LoRA equals peft's LoRA to 1e-9, in outputs and files (SPEC A1)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from pathlib import Path

import peft
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from chimera.adapter.adalora import adalora
from chimera.adapter.lora import lora
from chimera.adapter.shared.files import TENSORS, load, save, update_classes
from chimera.adapter.shared.low_rank import LowRank, adapted
from chimera.adapter.shared.merge import merge, prune
from chimera.adapter.sora import sora
from chimera.contract_tests import zoo
from chimera.errors import UserError
from tests.adapter.kit import TARGETS, batches, bert, stir, theirs, updates
from tests.kit import close, uniform


def pair() -> tuple[nn.Module, nn.Module]:
    """Chimera's and peft's model with equal weights."""
    ours = lora(bert(), r=4, alpha=6.0, targets=TARGETS, train=["classifier"])
    stir(ours)
    config = peft.LoraConfig(
        r=4, lora_alpha=6, target_modules=["query", "value"], modules_to_save=["classifier"]
    )
    other = peft.get_peft_model(bert(), config)
    for name, update in updates(ours).items():
        for part in ("A", "B"):
            theirs(other, name, part).data.copy_(getattr(update, part))
    return ours.train(), other.train()


def test_forward_gradients_and_a_step_equal_pefts() -> None:
    ours, other = pair()
    batch = next(batches(1))
    found = []
    for model in (ours, other):
        trained = [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=1e-2, weight_decay=0.01)
        out = model(**batch)
        out.loss.backward()
        optimizer.step()
        found.append((out.logits, model(**batch).logits))
    close(found[0], found[1], 1e-9)
    assert not torch.equal(found[0][0], found[0][1])
    for name, update in updates(ours).items():
        for part in ("A", "B"):
            mine, other_one = getattr(update, part), theirs(other, name, part)
            close(mine.grad, other_one.grad, 1e-9)
            close(mine.data, other_one.data, 1e-9)
            assert mine.grad.any()


def test_trains_what_peft_trains_and_starts_from_the_model_itself() -> None:
    ours = lora(bert(), r=4, alpha=6.0, targets=TARGETS, train=["classifier"])
    _, other = pair()
    count = sum(p.numel() for p in ours.parameters() if p.requires_grad)
    assert count == other.get_nb_trainable_parameters()[0]
    batch = next(batches(1))
    close(ours.eval()(**batch).logits, bert().eval()(**batch).logits, 0.0)


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


def test_peft_loads_ours(tmp_path: Path) -> None:
    ours, _ = pair()
    with torch.no_grad():
        ours.classifier.weight.add_(1.0)
    save(ours, tmp_path)
    other = peft.PeftModel.from_pretrained(bert(), tmp_path).eval()
    batch = next(batches(1))
    close(other(**batch).logits, ours.eval()(**batch).logits, 1e-9)


def test_we_load_pefts(tmp_path: Path) -> None:
    _, other = pair()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.1 if parameter.requires_grad else 0.0)
    other.save_pretrained(tmp_path)
    again = load(bert(), tmp_path).eval()
    batch = next(batches(1))
    close(again(**batch).logits, other.eval()(**batch).logits, 1e-9)
    assert all(
        p.requires_grad == (".update." in n or n.startswith("classifier"))
        for n, p in again.named_parameters()
    )


def test_we_load_pefts_scaled_by_the_root_of_the_rank(tmp_path: Path) -> None:
    config = peft.LoraConfig(r=4, lora_alpha=6, target_modules=["query"], use_rslora=True)
    other = peft.get_peft_model(bert(), config)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.1 if parameter.requires_grad else 0.0)
    other.save_pretrained(tmp_path)
    batch = next(batches(1))
    again = load(bert(), tmp_path).eval()
    close(again(**batch).logits, other.eval()(**batch).logits, 1e-9)
    assert {update.scale for update in updates(again).values()} == {6 / 4**0.5}


@pytest.mark.parametrize("make", [lora, adalora, sora])
def test_every_adapter_is_saved_and_loaded_alone(
    make: Callable[..., nn.Module], tmp_path: Path
) -> None:
    model = make(bert(), targets=TARGETS, train=["classifier"])
    stir(model)
    save(model, tmp_path)
    batch = next(batches(1))
    close(load(bert(), tmp_path).eval()(**batch).logits, model.eval()(**batch).logits, 1e-12)
    close(load(model, tmp_path).eval()(**batch).logits, model.eval()(**batch).logits, 1e-12)
    assert not any("embeddings" in key for key in load_file(tmp_path / TENSORS))


def test_peft_loads_our_adalora(tmp_path: Path) -> None:
    model = adalora(bert(), targets=TARGETS, train=["classifier"])
    stir(model)
    save(model, tmp_path)
    batch = next(batches(1))
    other = peft.PeftModel.from_pretrained(bert(), tmp_path).eval()
    close(other(**batch).logits, model.eval()(**batch).logits, 1e-9)


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
    batch = next(batches(1))
    before = model.eval()(**batch).logits
    size = sum(p.numel() for p in model.parameters())
    assert list(prune(model).values()) == ranks
    close(model(**batch).logits, before, 1e-12)
    assert sum(p.numel() for p in model.parameters()) < size
    assert [u.r for u in updates(model).values()] == [8, 5, 1]
    save(model, tmp_path)
    other = peft.PeftModel.from_pretrained(bert(), tmp_path).eval()
    close(other(**batch).logits, before, 1e-9)
    close(load(bert(), tmp_path).eval()(**batch).logits, before, 1e-12)


@pytest.mark.parametrize("make", [lora, adalora, sora])
def test_merging_gives_the_same_logits_without_an_adapter(make: Callable[..., nn.Module]) -> None:
    model = make(bert(), targets=TARGETS, train=[])
    stir(model)
    batch = next(batches(1))
    before = model.eval()(**batch).logits
    done = merge(model)
    close(model(**batch).logits, before, 1e-12)
    assert (len(done.merged), done.kept, adapted(model)) == (4, {}, {})
    assert set(model.state_dict()) == set(bert().state_dict())


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
