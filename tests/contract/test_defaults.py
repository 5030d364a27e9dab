"""The constructor of each component has the defaults of its YAML (SPEC Mixers)."""

from __future__ import annotations

import inspect

import pytest
import yaml
from hydra.utils import get_object

from chimera.paths import CONF
from tests import zoo

GROUPS = ("mixer", "norm", "quant", "ffn", "position", "adapter")


def nodes(group: str) -> dict[str, list[dict[str, object]]]:
    """YAML files of a group by class."""
    found: dict[str, list[dict[str, object]]] = {}
    for name in zoo.names(group):
        node = yaml.safe_load((CONF / group / f"{name}.yaml").read_text())
        found.setdefault(node["_target_"], []).append(node)
    return found


@pytest.mark.parametrize("group", GROUPS)
def test_defaults_of_the_constructor_are_those_of_a_yaml(group: str) -> None:
    """Variants of a class (`aft_local`) override some defaults; one YAML file has all defaults."""
    for target, yamls in nodes(group).items():
        parameters = inspect.signature(get_object(target)).parameters.values()
        own = {p.name: p.default for p in parameters if p.default is not p.empty}
        assert any({k: node.get(k, "absent") for k in own} == own for node in yamls), target
