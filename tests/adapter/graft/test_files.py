"""Save and load grafted models; the schedule of α and its state in checkpoints."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from chimera import graft
from chimera.adapter.graft import NEW
from chimera.callback.part.liza import MagSchedule
from chimera.config.compose import compose, plain
from chimera.errors import UserError
from tests.adapter.graft.kit import causal_model, tokens

SAID = {"max_new_tokens": 25, "do_sample": False}


@pytest.fixture
def base(tmp_path: Path) -> Path:
    causal_model().save_pretrained(tmp_path / "base")
    return tmp_path / "base"


def trained(base: Path, **said: Any) -> Any:
    """Grafted model whose new parameters have other than initial values."""
    model = graft.liza(base, **said)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
        for memory in graft.memories(model):
            memory.linear.norm.weight.mul_(1.5)
    graft.set_weight(model, 0.375)
    return model.eval()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("whole", [False, True], ids=["new", "whole"])
@pytest.mark.parametrize(
    "said",
    [
        {},
        {"lora": None, "train": "projections", "order": 1, "trick": "none"},
        {"lora": 3, "lora_alpha": 5.0, "mag": "cross_gate", "gate": "kv", "max_cache": 7},
        {"lora": None, "trick": "rotary", "nonlinearity": "gelu", "chunk": 5},
    ],
    ids=["lora", "projections", "cross", "none"],
)
def test_saved_loaded_and_generating_the_same(
    said: dict[str, Any], whole: bool, base: Path, tmp_path: Path
) -> None:
    model, ids = trained(base, **said), tokens(1, 9)
    graft.save(model, tmp_path / "out", whole=whole)
    again = graft.load(tmp_path / "out", None if whole else base)
    assert torch.equal(again(ids).logits, model(ids).logits)
    want = model.generate(ids, attention_mask=torch.ones_like(ids), **SAID)
    assert torch.equal(again.generate(ids, attention_mask=torch.ones_like(ids), **SAID), want)
    assert [float(m.mag_weight) for m in graft.memories(again)] == [0.375, 0.375]
    if not whole:
        kept = load_file(tmp_path / "out" / NEW)
        frozen = {n for n, p in model.named_parameters() if not p.requires_grad} - {
            n for n, _ in model.named_parameters() if ".liza." in n or ".update." in n
        }
        assert not frozen & set(kept)


def test_a_base_that_moved_or_is_another(base: Path, tmp_path: Path) -> None:
    model = trained(base)
    graft.save(model, tmp_path / "out")
    moved = base.rename(tmp_path / "moved")
    ids = tokens(1, 9)
    assert torch.equal(graft.load(tmp_path / "out", moved)(ids).logits, model(ids).logits)
    with pytest.raises(UserError, match=f"it was saved with the base {base}"):
        graft.load(tmp_path / "out")
    with pytest.raises(UserError, match="is no folder with a causal model"):
        graft.load(tmp_path / "out", tmp_path / "gone")
    causal_model("Qwen3").save_pretrained(tmp_path / "other")
    with pytest.raises(UserError, match="is not the base of"):
        graft.load(tmp_path / "out", tmp_path / "other")
    with pytest.raises(UserError, match=r"has no liza\.json"):
        graft.load(tmp_path)


def test_mixer_and_adapter_bring_their_schedule_along() -> None:
    for words in (["mixer=liza"], ["adapter=liza", "task=causal_lm"]):
        node = plain(compose(words))[words[0].partition("=")[0]]
        assert node["callbacks"]["mag"]["_target_"] == "chimera.callback.part.liza.MagSchedule"


class Module(nn.Module):
    """Module with a weight around a grafted model, as a task."""

    def __init__(self) -> None:
        super().__init__()
        self.model = graft.liza(causal_model())


def weights(module: nn.Module) -> set[float]:
    return {round(float(memory.mag_weight), 6) for memory in graft.memories(module)}


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({}, [0.5, 0.5, 0.5, 0.5]),
        ({"schedule": "gradual", "steps": 4, "end": 0.41}, [0.01, 0.11, 0.21, 0.31, 0.41, 0.41]),
        ({"schedule": "cyclic"}, [0.0, 0.5, 1.0, 0.0, 0.5]),
        ({"schedule": "cyclic", "values": [0.25, 0.75]}, [0.25, 0.75, 0.25]),
    ],
    ids=["constant", "gradual", "cyclic", "list"],
)
def test_schedules(said: dict[str, Any], expected: list[float]) -> None:
    module, callback = Module(), MagSchedule(**said)
    trainer: Any = SimpleNamespace(max_steps=100)
    callback.setup(trainer, module, "fit")  # type: ignore[arg-type]
    for step, weight in enumerate(expected):
        trainer.global_step = step
        callback.on_train_batch_start(trainer, module, None, 0)  # type: ignore[arg-type]
        assert weights(module) == {weight}
        saved = module.state_dict()
        assert {float(v) for k, v in saved.items() if k.endswith("mag_weight")} == {
            float(torch.tensor(weight))
        }


def test_a_short_run_arrives_and_validation_has_its_own_weight() -> None:
    module, callback = Module(), MagSchedule(schedule="gradual", evaluate=0.25)
    trainer: Any = SimpleNamespace(max_steps=10, global_step=5)
    callback.setup(trainer, module, "fit")  # type: ignore[arg-type]
    callback.on_train_batch_start(trainer, module, None, 0)  # type: ignore[arg-type]
    assert weights(module) == {0.5}
    callback.on_validation_start(trainer, module)  # type: ignore[arg-type]
    assert weights(module) == {0.25}
    callback.on_train_batch_start(trainer, module, None, 0)  # type: ignore[arg-type]
    assert weights(module) == {0.5}
