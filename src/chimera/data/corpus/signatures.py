"""Make instructions from Python's standard library: describe a function, given its signature.

The sources are read with `ast`, without importing them. The answer is the first sentence of the
docstring; functions without such a sentence are skipped. Needs no network.
"""

from __future__ import annotations

import ast
import json
import platform
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from chimera.data.source import cache
from chimera.data.source.fingerprint import fingerprint_of
from chimera.errors import UserError

VERSION = ("signatures", 1, platform.python_version())
INSTRUCTION = "Say in one sentence what this Python function does."
_SKIPPED = {"tests", "test", "site-packages", "lib2to3", "idlelib", "pydoc_data", "turtledemo"}
_SENTENCE = re.compile(r"[A-Z][^\n]{20,200}?\.(?=\s|$)")


def check(instead: str) -> None:
    """Refuse a Python without sources.

    Args:
        instead: alternative to name in the error message.

    Raises:
        UserError: the sources of the standard library are missing.
    """
    if not (_library() / "argparse.py").is_file():
        raise UserError(f"Python's sources are not in {_library()}; give {instead}")


def records(root: Path) -> list[dict[str, Any]]:
    """Records of all functions whose docstring begins with a sentence; kept in the cache `root`."""
    folder, _ = cache.entry(root, "signatures", fingerprint_of(VERSION), _write)
    rows: list[dict[str, Any]] = json.loads((folder / "records.json").read_text("utf-8"))
    return rows


def _write(folder: Path) -> dict[str, Any]:
    rows = list(_harvest())
    (folder / "records.json").write_text(json.dumps(rows, ensure_ascii=False), "utf-8")
    return {"records": len(rows)}


def _harvest() -> Iterator[dict[str, str]]:
    seen: set[str] = set()
    for file in sorted(_library().rglob("*.py")):
        inside = file.relative_to(_library())
        if _SKIPPED & set(inside.parts):
            continue
        try:
            tree = ast.parse(file.read_bytes())
        except (SyntaxError, ValueError):  # templates, and tests of the parser
            continue
        module = ".".join(inside.with_suffix("").parts).removesuffix(".__init__")
        for name, function in _functions(tree, module):
            sentence = _SENTENCE.match(" ".join((ast.get_docstring(function) or "").split()))
            if sentence and sentence[0] not in seen:
                seen.add(sentence[0])
                signature = f"def {name}({ast.unparse(function.args)})"
                yield {"instruction": INSTRUCTION, "input": signature, "output": sentence[0]}


def _functions(
    scope: ast.AST, name: str
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for node in ast.iter_child_nodes(scope):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if not node.name.startswith("_"):
                yield f"{name}.{node.name}", node
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node, f"{name}.{node.name}")


def _library() -> Path:
    return Path(sysconfig.get_path("stdlib"))
