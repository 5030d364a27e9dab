"""An import only ever goes down; there is no circle of files or of folders."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

from chimera.paths import PACKAGE

#: The rooms of each floor, the lowest first. An import goes to a lower floor or stays in its room.
FLOORS: tuple[tuple[str, ...], ...] = (
    ("dotted", "paths", "errors", "types", "world", "program"),
    ("safe_io",),
    ("contract", "contract_gguf", "contract_hf", "data", "rundir"),
    ("ops", "config"),
    ("mixer", "norm", "quant", "ffn", "position", "adapter", "optim"),
    ("model", "callback"),
    ("task", "report"),
    ("train",),
    ("sweep", "evaluate", "generate", "export", "tables"),
    ("cli", "api", "contract_tests"),
    ("__main__",),
)
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}


def modules(root: Path = PACKAGE) -> dict[str, Path]:
    """Every module of a package by its dotted name below it; the package's own is empty."""
    found = {}
    for file in sorted(root.rglob("*.py")):
        parts = file.relative_to(root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


@cache
def arrows(root: Path = PACKAGE) -> dict[str, set[str]]:
    """Module to the modules that it imports, wherever in the file the import stands."""
    known = modules(root)
    return {
        name: {target for target in _targets(name, file, known, root.name) if target != name}
        for name, file in known.items()
    }


def _targets(name: str, file: Path, known: Mapping[str, Path], package: str) -> Iterator[str]:
    inside = name if file.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            named = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = [package, *(part for part in inside.split(".") if part)]
                above = above[: len(above) + 1 - node.level]
                base = ".".join([*above, base] if base else above)
            named = [f"{base}.{alias.name}" for alias in node.names]
        else:
            continue
        for full in named:
            if full.partition(".")[0] == package:
                yield _module(full.partition(".")[2], known)


def _module(name: str, known: Mapping[str, Path]) -> str:
    """The module that a dotted name is, or is in."""
    while name and name not in known:
        name = name.rpartition(".")[0]
    return name


def folder(module: str, known: Mapping[str, Path]) -> str:
    """The folder of a module: its package."""
    return module if known[module].name == "__init__.py" else module.rpartition(".")[0]


def room(module: str) -> str:
    """The top-level folder or file that a module is in."""
    return module.partition(".")[0]


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Groups of nodes that reach each other, by repeatedly removing what nothing points to or from.

    What is left over lies on a circle or between two.
    """
    left = {node: set(targets) & set(graph) for node, targets in graph.items()}
    while True:
        sources = {target for targets in left.values() for target in targets}
        ends = [node for node, targets in left.items() if not targets or node not in sources]
        if not ends:
            break
        for node in ends:
            del left[node]
        for targets in left.values():
            targets.difference_update(ends)
    return [sorted(left)] if left else []


#: `import chimera` and `python -m chimera`: they lead to the ninth floor, and nobody imports them.
ENTRIES = {"", "__main__"}


def test_every_room_has_a_floor() -> None:
    rooms = {room(module) for module in modules() if module}
    assert rooms <= set(FLOOR), rooms - set(FLOOR)


def test_no_arrow_runs_up() -> None:
    up = [
        f"{module} -> {target}"
        for module, targets in arrows().items()
        for target in targets
        if module not in ENTRIES
        and target
        and room(module) != room(target)
        and FLOOR[room(target)] >= FLOOR[room(module)]
    ]
    assert not up


def test_nobody_imports_the_package_itself() -> None:
    """`from chimera import graft` is for its users; inside, a module is named by its place."""
    assert not [module for module, targets in arrows().items() if ENTRIES & targets]


def test_there_is_no_circle_of_files() -> None:
    assert not circles(arrows())


def test_there_is_no_circle_of_folders() -> None:
    known = modules()
    graph: dict[str, set[str]] = {}
    for module, targets in arrows().items():
        if module in ENTRIES:
            continue
        here = folder(module, known)
        graph.setdefault(here, set()).update({folder(t, known) for t in targets} - {here})
    assert not circles(graph)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("from pack import b", {"b"}),
        ("def f():\n    from pack.sub.c import X", {"sub.c"}),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import pack.sub", {"sub"}),
        ("from . import b", {"b"}),
        ("from .sub import c", {"sub.c"}),
        ("import os, packaging", set()),
    ],
)
def test_every_kind_of_import_is_read(text: str, found: set[str], tmp_path: Path) -> None:
    package = tmp_path / "pack"
    (package / "sub").mkdir(parents=True)
    for name in ("__init__", "b", "sub/__init__", "sub/c"):
        (package / f"{name}.py").touch()
    (package / "a.py").write_text(text)
    assert arrows(package)["a"] == found


def test_a_circle_is_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [["b", "c"]]
    assert not circles({"a": {"b", "c"}, "b": {"c"}, "c": set()})
