"""Contract of norms, quantisers, ffns and positions inside a model (SPEC Norms, Quantisers)."""

from __future__ import annotations

import pytest
import torch

from chimera.contract_tests import zoo
from chimera.contract_tests.kit import LENGTHS, close, padding_is_neutral
from chimera.model.language import LanguageModel

PARTS = [
    (group, name) for group in ("norm", "quant", "ffn", "position") for name in zoo.names(group)
]


def build(group: str, name: str) -> LanguageModel:
    """A tiny encoder whose parameters are not at their initial 0 and 1."""
    model = zoo.build(zoo.TINY, {group: name})
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.05 * torch.randn_like(p))
    return model


@pytest.mark.parametrize(("group", "name"), PARTS)
class TestEveryPart:
    def test_every_parameter_gets_a_gradient(self, group: str, name: str) -> None:
        model = build(group, name).double().train()
        out = model(zoo.tokens())
        (out.logits.square().mean() + sum(out.aux.values(), torch.tensor(0.0))).backward()
        without = [n for n, p in model.named_parameters() if p.requires_grad and p.grad is None]
        assert not without
        assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)

    @pytest.mark.sampled(1, each=("group", "name"))
    @pytest.mark.parametrize("left", [True, False], ids=["left", "right"])
    def test_padding_gives_the_unpadded_numbers(self, group: str, name: str, left: bool) -> None:
        model = build(group, name).double().eval()
        padding_is_neutral(model, [zoo.tokens(1, n)[0] for n in LENGTHS], left=left)

    def test_a_saved_part_gives_the_same_numbers(self, group: str, name: str) -> None:
        model = build(group, name).train()
        model(zoo.tokens())  # running statistics move
        other = zoo.build(zoo.TINY, {group: name})
        other.load_state_dict(model.state_dict())
        with torch.no_grad():
            close(other.eval()(zoo.tokens()).logits, model.eval()(zoo.tokens()).logits)
