"""How often files are composed, what is named where, and how soon a command answers."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from chimera.config import choices
from chimera.config.compose import compose, plain
from chimera.config.groups import ZOO
from chimera.contract_tests.zoo import names
from chimera.paths import PACKAGE


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
