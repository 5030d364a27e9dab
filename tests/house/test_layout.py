"""The architecture, read from the imports and the files: who may know whom."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hydra.utils import get_object

from chimera.config import choices
from chimera.config.compose import compose, plain
from chimera.config.schema import RESERVED, arguments, check_node, nodes
from chimera.contract_tests.zoo import ZOO, config, names
from chimera.paths import PACKAGE, ROOT

SRC = ROOT / "src" / "chimera"
#: Largest share of `a, b = c, d` among assignments.
PACKED = 0.02
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


def test_components_know_the_contract_and_ops_and_no_other_component() -> None:
    for file in COMPONENTS:
        named = imports(file)
        blocks = [f"chimera.{file.parent.name}.{room}." for room in ("shared", "graft")]
        fine = ("chimera.contract", "chimera.ops", "chimera.errors", "chimera.types", *blocks)
        others = {m for m in named if m.startswith("chimera") and not m.startswith(fine)}
        assert not others | {m for m in named if m.startswith(("hydra", "omegaconf", "lightning"))}


def test_ops_know_ops_only_and_are_functions_of_tensors() -> None:
    fine = ("chimera.ops", "chimera.errors", "chimera.contract")
    for file in SRC.glob("ops/*.py"):
        inside = {m for m in imports(file) if m.startswith("chimera")}
        assert not {m for m in inside if not m.startswith(fine)}, file
        assert "nn.Module" not in file.read_text(encoding="utf-8"), file


def test_functions_are_short_and_most_assignments_have_one_target() -> None:
    nodes = [node for file in SRC.rglob("*.py") for node in ast.walk(ast.parse(file.read_text()))]
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef)]
    assert not {f.name for f in functions if (f.end_lineno or 0) - f.lineno >= 60}
    assigned = [node for node in nodes if isinstance(node, ast.Assign)]
    packed = [a for a in assigned if isinstance(a.targets[0], ast.Tuple)]
    packed = [a for a in packed if isinstance(a.value, ast.Tuple)]
    assert len(packed) < PACKED * len(assigned)


@pytest.mark.parametrize("group", ZOO)
def test_yaml_names_every_hyperparameter_and_no_other(group: str) -> None:
    for name in names(group):
        node = config(**{group: name})[group]
        check_node(group, node)  # keys known, types and ranges right
        target = get_object(node["_target_"])
        assert set(node) - RESERVED == set(arguments(node["_target_"])), name
        kinds = {p.kind for p in inspect.signature(target).parameters.values()}
        assert inspect.Parameter.VAR_KEYWORD not in kinds, name
        assert nodes(group, node) == [(group, node)], name


def test_protocols_of_isinstance_have_methods_only() -> None:
    """From Python 3.12 on isinstance finds no parameter or buffer of a `torch.nn.Module`."""
    for file in SRC.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and "runtime_checkable" in map(
                ast.unparse, node.decorator_list
            ):
                assert not [each for each in node.body if isinstance(each, ast.AnnAssign)], node


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["mixer=retnet", "quant=bitnet158", "optim.lr=1e-3"],
        ["mixer=pattern", "mixer.cycle=[gqa,mqa,gqa]"],
        ["preset=titan_bert_ultra", "scale=smoke"],
        ["+saidl/hybrids=best_combo", "scale=small", "seed=1"],
        ["+titan/pattern=cyclic", "scale=smoke"],
    ],
    ids=" ".join,
)
def test_files_are_merged_once_per_job(overrides: list[str]) -> None:
    choices.merged_files.cache_clear()
    compose(overrides)
    assert choices.merged_files.cache_info().misses == 1
    # Jobs that differ in their values only share the composition, and not the configuration.
    other = plain(compose([*overrides, "seed=9"]))
    assert choices.merged_files.cache_info().misses == 1
    assert other["seed"] == 9
    assert plain(compose(overrides))["seed"] == int("seed=1" in overrides)


def literals(file: Path) -> Iterator[str]:
    """Strings of a source that are no docstrings."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    docs = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node.value


def test_config_and_model_name_no_component() -> None:
    components = {name for group in ZOO for name in names(group)} - {"none"}
    words = {"learned", "linear"}  # also a scale of embeddings, and what a Quantiser makes
    for file in (f for room in ("config", "model") for f in (PACKAGE / room).glob("*.py")):
        assert not components & set(literals(file)) - words, file


ROOT = Path(__file__).resolve().parents[2]
PLACES = ("conf", "docs", "experiments", "notebooks", "src", "benchmarks", "README.md")
SUFFIXES = {".py", ".md", ".yaml", ".json", ".csv", ".tex", ".ipynb", ".svg", ".txt"}


def test_no_path_of_one_machine() -> None:
    files = [file for place in PLACES for file in (ROOT / place, *(ROOT / place).rglob("*"))]
    found = {
        f"{file.relative_to(ROOT)}: {match[0]}"
        for file in files
        if file.suffix in SUFFIXES and file.is_file()
        for match in re.finditer(
            r"(?<![\w.>}])/(?:work|root|home|mnt|Users)/[\w/.-]+", file.read_text()
        )
    }
    assert not found
