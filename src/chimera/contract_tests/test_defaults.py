"""The constructor of each component has the defaults of its YAML (SPEC Mixers)."""

from __future__ import annotations

import inspect

import pytest
from hydra.utils import get_object

from chimera.config.groups import ZOO, node
from chimera.contract_tests import zoo


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
