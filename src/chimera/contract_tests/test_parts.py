"""Contract of norms, quantisers, ffns and positions inside a model (SPEC Norms, Quantisers)."""

from __future__ import annotations

import pytest
import torch

from chimera.contract import Mixer
from chimera.contract_tests import zoo
from chimera.contract_tests.kit import LENGTHS, close, padding_is_neutral
from chimera.errors import UserError
from chimera.model.assemble import build_model, choose
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


@pytest.mark.sampled(1, each=("one", "b"))
@pytest.mark.parametrize(
    ("a", "one", "b", "other"),
    [
        ("quant", quant, group, name)
        for quant in zoo.names("quant")
        for group in ("mixer", "adapter")
        for name in zoo.names(group)
    ],
)
def test_quantised_decoding_equals_the_parallel_form(a: str, one: str, b: str, other: str) -> None:
    """Halves on the grid are common in this model, and one that turns shows at 1e-3."""
    config = zoo.config(**{"mixer": "mla", "norm": "qdyt", "ffn": "relu2_glu", a: one, b: other})
    if "ties" in config["quant"]:
        config["quant"]["ties"] = "away"
    torch.manual_seed(0)
    settings = zoo.tiny(config["choices"]["mixer"])
    try:
        model = build_model(settings, choose(config), vocab_size=64, causal=True).double().eval()
    except UserError:
        return
    if any(type(m).init_state is Mixer.init_state for m in model.modules() if isinstance(m, Mixer)):
        pytest.skip(f"{b}={other} has no init_state: it trains and does not generate")
    ids = zoo.tokens(2, 24)
    found = []
    with torch.no_grad():
        state = model.init_state(2)
        for token in ids.split(1, 1):
            out = model(token, state=state)
            state = out.state
            found.append(out.logits)
        close(torch.cat(found, 1), model(ids).logits)
