"""What a class says of itself, read from its source where importing it would take seconds.

Tasks and callbacks stand on Lightning, whose import takes three seconds; a misspelt key behind
`task.` is to be refused within them. The constructor's signature stays the only schema: it is read,
not repeated. Whatever cannot be read this way is imported after all.
"""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

#: Packages whose modules import Lightning.
SLOW = ("chimera.task.", "chimera.callback.", "chimera.train.")


def keywords(target: str) -> dict[str, Any] | None:
    """Keyword-only arguments of a slow class's constructor with their types; None: import it."""
    found = _class(target)
    if found is None:
        return None
    module, node = found
    constructors = [n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"]
    if not constructors:
        return None
    names = _imports(module)
    try:
        return {
            argument.arg: _evaluate(argument.annotation, names)
            for argument in constructors[0].args.kwonlyargs
            if argument.annotation is not None
        }
    except NameError:  # a type that the module defines itself
        return None


_NOTHING = object()


def attribute(target: str, name: str, default: Any = _NOTHING) -> Any:
    """A class attribute with a literal value, such as a task's `causal`.

    Args:
        target: of the class.
        name: of the attribute.
        default: what the class has that does not set it itself; without, it is imported to see.
    """
    found = _class(target)
    for node in found[1].body if found else ():
        if isinstance(node, ast.Assign) and [getattr(t, "id", "") for t in node.targets] == [name]:
            return ast.literal_eval(node.value)
    if found and default is not _NOTHING:
        return default
    module, _, leaf = target.rpartition(".")
    there = getattr(import_module(module), leaf)
    return getattr(there, name) if default is _NOTHING else getattr(there, name, default)


@cache
def _parse(module: str) -> ast.Module | None:
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        return None
    return ast.parse(Path(spec.origin).read_text(encoding="utf-8"))


def _class(target: str) -> tuple[ast.Module, ast.ClassDef] | None:
    name, _, leaf = target.rpartition(".")
    if not target.startswith(SLOW) or name in sys.modules:
        return None
    module = _parse(name)
    for node in module.body if module else ():
        if isinstance(node, ast.ClassDef) and node.name == leaf:
            assert module is not None
            return module, node
    return None


def _imports(module: ast.Module) -> dict[str, tuple[str, str]]:
    """Local name to (module, name) of everything that is imported by `from … import …`."""
    return {
        alias.asname or alias.name: (node.module, alias.name)
        for node in module.body
        if isinstance(node, ast.ImportFrom) and node.module and not node.level
        for alias in node.names
    }


def _evaluate(annotation: ast.expr, imports: dict[str, tuple[str, str]]) -> Any:
    """The type that an annotation stands for.

    Raises:
        NameError: it uses a name that is neither built in nor imported.
    """
    known = {}
    for name in _names(annotation):
        if name in imports:
            module, original = imports[name]
            known[name] = getattr(import_module(module), original)
        elif not hasattr(builtins, name):
            raise NameError(name)
    return eval(compile(ast.Expression(annotation), "<annotation>", "eval"), known)


def _names(node: ast.AST) -> Iterator[str]:
    return (inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name))
