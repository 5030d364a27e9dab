"""Every parameter is in exactly one group, with the rates of TITAN Table 3 (SPEC T1, T2)."""

from __future__ import annotations

import pytest
from hydra.utils import instantiate

from chimera.config.compose import compose, plain
from chimera.contract_tests import zoo
from chimera.optim.groups import components, groups


@pytest.mark.parametrize("mixer", zoo.names("mixer"))
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
    found = {group.component: group for group in groups(model, optim)}
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
