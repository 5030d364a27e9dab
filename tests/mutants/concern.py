"""Which tests concern a source file: those of its mirrored name, and those that import it."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from tests.mutants.mutate import ROOMS, ROOT

CONTRACT = "src/chimera/contract_tests/test_mixers.py"
DEFAULTS = "src/chimera/contract_tests/test_defaults.py"  # of every constructor
MOST = 6  # files for one mutant, without the contract


@cache
def concerning(file: str) -> tuple[tuple[str, ...], str]:
    """Test files in the order in which they run, and a `-k` for the mixers' contract, or "".

    Args:
        file: below src/chimera.
    """
    own = _module(file)
    above = _importers(own)
    found = [*_mirrored(file), *_testing(own)]
    for module in sorted(above, key=lambda name: (above[name], name)):
        path = module.removeprefix("chimera.").replace(".", "/") + ".py"
        found += [*_mirrored(path), *(_testing(module) if len(set(found)) < 2 else ())]
    if not found:  # known to its tests by its YAML only
        paths = (ROOT / "tests" / Path(file).parts[0]).glob("test_*.py")
        found = [path.relative_to(ROOT).as_posix() for path in sorted(paths)]
    mixers = _mixers({own, *above})
    return (*tuple(dict.fromkeys(found))[:MOST], DEFAULTS), " or ".join(mixers)


def _mirrored(file: str) -> list[str]:
    room, stem = Path(file).parts[0], Path(file).stem
    names = sorted((ROOT / "tests" / room).rglob(f"test_{stem}*.py"))
    return [path.relative_to(ROOT).as_posix() for path in names]


def _testing(module: str) -> list[str]:
    """Tests of the rooms that import a module, short files first."""
    rooms = (*ROOMS, "model", "callback")
    paths = [path for room in rooms for path in (ROOT / "tests" / room).rglob("test_*.py")]
    paths = [path for path in paths if module in _imports(path)]
    by_length = sorted(paths, key=lambda path: (path.stat().st_size, path))
    return [path.relative_to(ROOT).as_posix() for path in by_length]


def _importers(module: str) -> dict[str, int]:
    """Modules of the same rooms that import this one, directly (1) or through others (2, 3 …)."""
    found: dict[str, int] = {}
    reached, depth = {module}, 0
    while reached:
        depth += 1
        reached = {
            other
            for other, imports in _sources().items()
            if imports & reached and other not in found and other != module
        }
        found |= dict.fromkeys(reached, depth)
    return found


@cache
def _sources() -> dict[str, frozenset[str]]:
    base = ROOT / "src/chimera"
    paths = [path for room in ROOMS for path in (base / room).rglob("*.py")]
    return {_module(path.relative_to(base).as_posix()): _imports(path) for path in paths}


def _mixers(modules: set[str]) -> list[str]:
    """Names of the mixers that conf/ takes from these modules."""
    found = []
    for path in sorted((ROOT / "conf/mixer").glob("*.yaml")):
        target = re.search(r"_target_:\s*(\S+)\.\w+", path.read_text())
        if target and target[1] in modules:
            found.append(path.stem)
    return found


@cache
def _imports(path: Path) -> frozenset[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(names)


def _module(file: str) -> str:
    return "chimera." + file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
