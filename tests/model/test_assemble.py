"""Assembling a model: its builder, the adapter left out, and what is refused by name."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from chimera.contract import CAUSAL, Context, Mixer, Out, Parts, Site
from chimera.contract_tests import zoo
from chimera.errors import UserError
from chimera.model.assemble import Choices, build_model, choose
from chimera.model.language import LanguageModel


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


class Reads(Mixer):
    """The mean of all tokens: for encoders alone, and only in parallel."""

    component, directions = "reads", frozenset({"bidirectional"})

    def __init__(self, site: Site, parts: Parts) -> None:
        super().__init__()
        self.out: nn.Module = parts.linear(site.dim, site.dim, bias=False, role="out")

    def forward(self, x: Tensor, ctx: Context, state: Any = None) -> Out:
        return Out(self.out(x.mean(1, keepdim=True).expand_as(x)))


class Parallel(Reads):
    """The mean of the tokens so far, without a form that decodes."""

    component, directions = "parallel", CAUSAL

    def forward(self, x: Tensor, ctx: Context, state: Any = None) -> Out:
        counts = torch.arange(1, x.shape[1] + 1, device=x.device)[:, None]
        return Out(self.out(x.cumsum(1) / counts))


def model(kind: type[Mixer], *, causal: bool) -> LanguageModel:
    config = zoo.config()
    config["mixer"] = {"_target_": f"{__name__}.{kind.__name__}", "_partial_": True}
    config["choices"] = {**config["choices"], "mixer": kind.component}
    return build_model(zoo.TINY, choose(config), vocab_size=64, causal=causal)


def test_a_mixer_for_encoders_is_refused_in_a_decoder() -> None:
    assert model(Reads, causal=False)(zoo.tokens()).logits.isfinite().all()
    with pytest.raises(
        UserError, match=r"mixer=reads reads the tokens after .*task=mlm"
    ) as refusal:
        model(Reads, causal=True)
    assert "\n" not in str(refusal.value)


def test_a_mixer_for_decoders_is_wrapped_in_an_encoder() -> None:
    assert model(Parallel, causal=False)(zoo.tokens()).logits.isfinite().all()


def test_a_mixer_without_a_state_trains_and_is_refused_where_it_would_decode() -> None:
    decoder = model(Parallel, causal=True)
    decoder.check_length(zoo.TINY.max_len)  # asked before training
    assert decoder(zoo.tokens()).logits.isfinite().all()
    with pytest.raises(UserError, match="mixer=parallel cannot decode: it has no init_state"):
        decoder.init_state(1)
