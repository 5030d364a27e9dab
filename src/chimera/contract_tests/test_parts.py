"""Contract of norms, quantisers, ffns and positions inside a model (SPEC Norms, Quantisers).

Each has the defaults of its YAML, and every pair of choices of the six groups trains one step, or
raises an error with their names.
"""

from __future__ import annotations

import inspect
from itertools import combinations
from typing import Any

import pytest
import torch
from hydra.utils import get_object

from chimera.config.groups import ZOO, node
from chimera.contract import Mixer
from chimera.contract_tests import zoo
from chimera.contract_tests.zoo import LENGTHS, close, padding_is_neutral
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


def nodes(group: str) -> dict[str, list[dict[str, object]]]:
    """YAML files of a group by class."""
    found: dict[str, list[dict[str, object]]] = {}
    for name in zoo.names(group):
        yaml = node(group, name)
        found.setdefault(yaml["_target_"], []).append(yaml)
    return found


@pytest.mark.parametrize("group", ZOO)
def test_defaults_of_the_constructor_are_those_of_a_yaml(group: str) -> None:
    """Variants of a class (`aft_local`) override some defaults; one YAML file has all defaults."""
    for target, yamls in nodes(group).items():
        parameters = inspect.signature(get_object(target)).parameters.values()
        own = {p.name: p.default for p in parameters if p.default is not p.empty}
        assert any({k: yaml.get(k, "absent") for k in own} == own for yaml in yamls), target


def pairs() -> list[Any]:
    """All pairs; those in which each choice meets each other group at least once are fast."""
    found = []
    for a, b in combinations(zoo.ZOO, 2):
        fewer = min(len(zoo.names(a)), len(zoo.names(b)))
        for i, one in enumerate(zoo.names(a)):
            for j, other in enumerate(zoo.names(b)):
                marks = [pytest.mark.slow] * bool((i + j) % fewer)
                found.append(pytest.param(a, one, b, other, marks=marks))
    return found


@pytest.mark.sampled(100)
@pytest.mark.parametrize(("a", "one", "b", "other"), pairs())
def test_pair_trains_a_step_or_is_refused(a: str, one: str, b: str, other: str) -> None:
    try:
        model = zoo.build(zoo.tiny(one if a == "mixer" else "attention"), {a: one, b: other})
    except UserError as refusal:
        line = str(refusal)
        assert "\n" not in line
        # An adapter that rejects Chimera's models raises an error with its name.
        named = [(b, other)] if b == "adapter" else [(a, one), (b, other)]
        assert all(f"{group}={name}" in line for group, name in named)
        return
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    out = model(zoo.tokens(), index=torch.tensor([3, 5, 20]))
    targets = torch.tensor([1, 2, 3])
    loss = torch.nn.functional.cross_entropy(out.logits, targets) + sum(out.aux.values())
    loss.backward()
    before = [p.detach().clone() for p in model.parameters()]
    optimizer.step()
    assert torch.isfinite(loss)
    assert any(not torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))
