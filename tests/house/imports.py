"""The import arrows of the package, read from the sources: lazy and type-checking ones too."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

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
