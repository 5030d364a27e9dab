"""The architecture, read from the imports and the files: who may know whom."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest
from hydra.utils import get_object

from chimera.config.groups import groups
from chimera.config.schema import RESERVED, arguments, check_node, nodes
from chimera.contract_tests.zoo import ZOO, config, names
from chimera.paths import CONF, ROOT

SRC = ROOT / "src" / "chimera"
COMPONENTS = [
    f
    for g in ("mixer", "norm", "quant", "ffn", "position", "adapter")
    for f in sorted((SRC / g).glob("*.py"))
]


def imports(file: Path) -> set[str]:
    """Every module that a file names in an import, wherever in the file it stands."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


@pytest.mark.parametrize("file", COMPONENTS, ids=lambda f: f"{f.parent.name}/{f.stem}")
def test_components_know_the_contract_and_ops_and_no_other_component(file: Path) -> None:
    inside = {m for m in imports(file) if m.startswith("chimera")}
    blocks = [f"chimera.{file.parent.name}.{room}." for room in ("shared", "graft")]
    fine = ("chimera.contract", "chimera.ops", "chimera.errors", "chimera.types", *blocks)
    assert not {m for m in inside if not m.startswith(fine)}
    assert not {m for m in imports(file) if m.split(".")[0] in {"hydra", "omegaconf", "lightning"}}


@pytest.mark.parametrize("file", sorted(SRC.glob("ops/*.py")), ids=lambda f: f.stem)
def test_ops_know_ops_only(file: Path) -> None:
    inside = {m for m in imports(file) if m.startswith("chimera")}
    assert not {
        m for m in inside if not m.startswith(("chimera.ops", "chimera.errors", "chimera.contract"))
    }


@pytest.mark.parametrize("file", sorted(SRC.glob("ops/*.py")), ids=lambda f: f.stem)
def test_ops_are_functions_of_tensors(file: Path) -> None:
    assert "nn.Module" not in file.read_text(encoding="utf-8")


@pytest.mark.parametrize(("group", "name"), [(g, n) for g in ZOO for n in names(g)])
def test_yaml_names_every_hyperparameter_and_no_other(group: str, name: str) -> None:
    node = config(**{group: name})[group]
    check_node(group, node)  # keys known, types and ranges right
    target = get_object(node["_target_"])
    assert set(node) - RESERVED == set(arguments(node["_target_"]))
    assert not any(p.kind is p.VAR_KEYWORD for p in inspect.signature(target).parameters.values())
    assert nodes(group, node) == [(group, node)]


def test_every_group_with_a_folder_has_a_choice() -> None:
    folders = {p.name for p in CONF.iterdir() if p.is_dir()}
    assert folders == {g for g in groups() if (CONF / g).is_dir()}


@pytest.mark.parametrize(
    "file", [f for f in sorted(SRC.rglob("*.py")) if "@runtime_checkable" in f.read_text()],
    ids=lambda f: f.stem,
)  # fmt: skip
def test_protocols_of_isinstance_have_methods_only(file: Path) -> None:
    """From Python 3.12 on isinstance finds no parameter or buffer of a `torch.nn.Module`."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef) and "runtime_checkable" in map(
            ast.unparse, node.decorator_list
        ):
            assert not [each for each in node.body if isinstance(each, ast.AnnAssign)], node.name
