"""Titan memory: Mamba plus eq. 31-32, forms, padding, α."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

from chimera.mixer.mamba import Mamba
from chimera.mixer.titan_memory import TitanMemory
from tests import kit
from tests.mixer import forms
from tests.reference.memory import read

HEADS = 4


def _mixer(**choices: object) -> nn.Module:
    mixer = kit.double(lambda: TitanMemory(kit.site(), kit.parts(), **choices))
    with torch.no_grad():  # heads with different α
        mixer.memory.alpha_logit += torch.linspace(-2, 2, HEADS)
    return mixer


def _whole(mixer: nn.Module, x: Tensor) -> Tensor:
    y, gate, _ = mixer.ssm(x)
    return mixer.out_proj((y + read(mixer.memory, x)) * gate)


class TestForms(forms.Forms):
    build, oracle = staticmethod(_mixer), staticmethod(_whole)
    options: ClassVar = [{"chunk_size": 16}, {"normalise": False, "chunk_size": 8}]
    size = 1.0


def test_without_values_it_is_mamba() -> None:
    mixer = _mixer()
    with torch.no_grad():
        mixer.memory.v_proj.weight.zero_()
    plain = kit.double(lambda: Mamba(kit.site(), kit.parts()), seed=1)
    own = mixer.state_dict()
    plain.load_state_dict({name: own[name] for name in plain.state_dict()})
    x = torch.randn(2, 20, 32, dtype=torch.float64)
    ctx = kit.ctx(tokens=20)
    kit.close(mixer(x, ctx).y, plain(x, ctx).y, 1e-12)


@pytest.mark.parametrize("learn", [True, False])
def test_alpha_starts_as_asked_and_is_learned_by_option(learn: bool) -> None:
    mixer = TitanMemory(kit.site(), kit.parts(), alpha=0.97, learn_alpha=learn)
    kit.close(torch.sigmoid(mixer.memory.alpha_logit), torch.full((HEADS,), 0.97), 1e-6)
    assert ("memory.alpha_logit" in dict(mixer.named_parameters())) == learn
    assert "memory.alpha_logit" in mixer.state_dict()
