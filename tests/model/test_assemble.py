"""Settings classes name the builder of their model; `choose` can omit the adapter."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from chimera.contract_tests import zoo
from chimera.errors import UserError
from chimera.model.assemble import Choices, build_model, choose


@dataclass(frozen=True)
class Mine:
    """Settings of a model outside Chimera."""

    builder: ClassVar[str] = f"{__name__}.mine"
    width: int = 3


def mine(settings: Mine, choices: Choices, *, vocab_size: int, causal: bool | None) -> Any:
    """Builder of this model."""
    assert causal
    assert choices.names["mixer"] == "retnet"
    return nn.Embedding(vocab_size, settings.width)


def test_a_settings_class_of_your_own_names_its_builder() -> None:
    model: Any = build_model(Mine(), zoo.choices(mixer="retnet"), vocab_size=5, causal=True)
    assert model.weight.shape == (5, 3)


def test_a_model_without_its_adapter_is_the_model_without_any() -> None:
    config = zoo.config(adapter="lora")
    models = []
    for choices in (choose(config, adapter=False), zoo.choices()):
        torch.manual_seed(0)
        models.append(build_model(zoo.TINY, choices, vocab_size=64, causal=False).state_dict())
    assert models[0].keys() == models[1].keys()
    assert all(torch.equal(models[0][name], tensor) for name, tensor in models[1].items())


def test_a_quantiser_without_effect_is_refused_by_name() -> None:
    for quant in ("bitnet158", "hbit", "int8"):
        for causal in (True, False):
            with pytest.raises(
                UserError, match=f"quant={quant} .*mixer=slstm; use mixer.headwise="
            ):
                zoo.model(mixer="slstm", quant=quant, causal=causal)
    config = zoo.config(mixer="slstm", quant="bitnet158")
    config["mixer"]["headwise"] = False
    build_model(zoo.TINY, choose(config), vocab_size=8, causal=True)


def test_a_quantised_head_that_is_a_plain_table_is_refused() -> None:
    config = zoo.config(quant="bitnet158")
    config["quant"]["head"] = True
    tied = replace(zoo.TINY, tie_head=True)
    with pytest.raises(UserError, match=r"quant.head=true has no effect with model.tie_head=true"):
        build_model(tied, choose(config), vocab_size=8, causal=True)
    build_model(replace(tied, tie_head=False), choose(config), vocab_size=8, causal=True)
    config["quant"]["embedding"] = True
    build_model(tied, choose(config), vocab_size=8, causal=True)
