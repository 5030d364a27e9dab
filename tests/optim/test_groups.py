"""Every parameter is in exactly one group, with the rates of TITAN Table 3 (SPEC T1, T2)."""

from __future__ import annotations

import pytest
import torch
from hydra.utils import instantiate

from chimera.config.compose import compose, plain
from chimera.config.settings import Optim
from chimera.contract_tests import zoo
from chimera.model.assemble import build_model, choose
from chimera.norm.dyt import DyT
from chimera.optim.optimizer import build, components, groups, undecayed

SMALL = ["model.dim=16", "model.depth=1", "model.heads=2", "model.max_len=8", "position=none"]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("mixer", zoo.distinct("mixer"))
def test_every_parameter_in_exactly_one_group(mixer: str) -> None:
    model = zoo.model(mixer=mixer, norm="qdyt")
    optim = instantiate(plain(compose([]))["optim"], _convert_="all")
    ids = [id(p) for group in groups(model, optim) for p in group.parameters]
    assert len(ids) == len(set(ids))
    assert set(ids) == {id(p) for p in model.parameters() if p.requires_grad}
    assert "other" not in components(model).values()


def test_rates_of_titan_table_3() -> None:
    optim = instantiate(plain(compose(["optim.lr=1e-4"]))["optim"], _convert_="all")
    model = zoo.model(mixer="retnet", norm="dyt")
    found = {group.component: group for group in groups(model, optim) if not group.undecayed}
    assert found["embedding"].lr == pytest.approx(1e-4)
    assert found["norm"].lr == pytest.approx(2e-4)
    assert found["norm"].weight_decay == 0.001
    assert found["retnet"].lr == pytest.approx(1.5e-4)
    assert found["retnet"].weight_decay == 0.01
    others = set(found) - set(optim.rates)
    assert others
    assert all(found[name].lr == pytest.approx(1e-4) for name in others)
    assert optim.rates["ode"] * optim.lr == pytest.approx(5e-5)
    assert optim.rates["mamba"] * optim.lr == pytest.approx(1e-4)
    assert optim.rates["attention"] * optim.lr == pytest.approx(1e-4)
    assert optim.betas == [0.9, 0.95]


def test_a_frozen_parameter_is_in_no_group() -> None:
    model = zoo.model()
    for parameter in (model.backbone.embedding.weight, model.backbone.scale.scale):
        parameter.requires_grad_(False)
    optim = instantiate(plain(compose([]))["optim"], _convert_="all")
    assert "embedding" not in {group.component for group in groups(model, optim)}


@pytest.mark.parametrize(
    ("choices", "names"),
    [
        ({"mixer": "mamba"}, {"mamba": ("A_log", "D", "dt_bias")}),
        ({"mixer": "delta", "options": ["mixer.decay=true"]}, {"delta": ("rate", "decay_bias")}),
        ({"mixer": "titan_memory"}, {"mamba": ("alpha_logit", "A_log", "D", "dt_bias")}),
        ({"mixer": "mlstm"}, {"mlstm": ("gate_bias",)}),
        ({"mixer": "slstm"}, {"slstm": ("gate_bias",)}),
        ({"norm": "dyt"}, {"norm": ("alpha",)}),
        ({"norm": "qdyt"}, {"norm": ("alpha",)}),
        ({"norm": "layernorm"}, {}),
    ],
)
def test_decay_leaves_rates_gates_and_slopes_alone(
    choices: dict[str, object], names: dict[str, tuple[str, ...]]
) -> None:
    options = choices.pop("options", [])
    config = plain(compose([*(f"{k}={v}" for k, v in choices.items()), *options, *SMALL]))  # type: ignore[misc]
    made = build_model(
        instantiate(config["model"], _convert_="all"), choose(config), vocab_size=8, causal=True
    )
    found = groups(made, instantiate(config["optim"], _convert_="all"))
    alone = {group.component: group for group in found if group.undecayed}
    assert {name: set(group.undecayed) for name, group in alone.items()} == {
        component: set(wanted) for component, wanted in names.items()
    }
    for group in alone.values():
        assert group.weight_decay == 0
        assert group.lr == next(g.lr for g in found if g.component == group.component)
    named = dict(made.named_parameters())
    assert {id(named[name]) for name in undecayed(made)} == {
        id(p) for group in alone.values() for p in group.parameters
    }


def test_an_undecayed_parameter_without_a_gradient_of_its_own_keeps_its_value() -> None:
    norm = DyT(4)
    made = groups(norm, Optim(lr=0.1, weight_decay=0.5))
    optimizer, _ = build(Optim(lr=0.1, weight_decay=0.5), made, 10, fused=False)
    for parameter in norm.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert bool((norm.alpha == 0.5).all())
    assert bool((norm.weight < 1).all())
