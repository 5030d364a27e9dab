"""A mixer of one's own in the other kind of model is refused in one line that names it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from chimera.contract import CAUSAL, Context, Mixer, Out, Parts, Site
from chimera.contract_tests import zoo
from chimera.errors import UserError
from chimera.model.assemble import build_model, choose
from chimera.model.language import LanguageModel


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
