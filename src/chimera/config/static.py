"""Read what a class says of itself from its source, where importing it would load torch.

torch takes 1.5 s to import and Lightning three; a misspelt key is to be refused before. The
constructor's signature stays the only schema: it is read here, not repeated. What cannot be read
from the source (a type that a function makes, a base class of torch's) is imported after all.
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

PACKAGE = __name__.partition(".")[0]
#: Rooms whose modules import torch.
ROOMS = (
    *("mixer", "norm", "quant", "ffn", "position", "adapter"),
    *("optim", "callback", "task", "train", "contract", "ops"),
)
SLOW = tuple(f"{PACKAGE}.{room}" for room in ROOMS)
_NOTHING = object()
Definition = ast.ClassDef | ast.FunctionDef


def keywords(target: str) -> dict[str, Any] | None:
    """Keyword-only arguments of a class or function with their types; None: import it."""
    found = _definition(target)
    if found is None:
        return None
    call = _call(*found)
    if call is None:
        return None if getattr(found[1], "bases", True) else {}
    module, function = call
    try:
        return {
            argument.arg: _evaluate(argument.annotation, module)
            for argument in function.args.kwonlyargs
            if argument.annotation is not None
        }
    except NameError:
        return None


def attribute(target: str, name: str, default: Any = _NOTHING) -> Any:
    """A class attribute with a literal value, such as a task's `causal`.

    Args:
        target: of the class.
        name: of the attribute.
        default: what a class has that does not set it; without one, the class is imported to see.
    """
    found = _definition(target)
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


def _definition(target: str) -> tuple[str, Definition] | None:
    """Module and source of a class or function; None where importing it costs nothing (more)."""
    module, _, leaf = target.rpartition(".")
    if not module.startswith(SLOW) or module in sys.modules:
        return None
    for node in _body(module):
        if isinstance(node, Definition) and node.name == leaf:
            return module, node
    return None


def _call(module: str, node: Definition) -> tuple[str, ast.FunctionDef] | None:
    """The function or the constructor, that of a base class if need be, and where it stands."""
    if isinstance(node, ast.FunctionDef):
        return module, node
    for inner in node.body:
        if isinstance(inner, ast.FunctionDef) and inner.name == "__init__":
            return module, inner
    for base in node.bases:
        place = _place(module, base.id) if isinstance(base, ast.Name) else None
        found = _definition(".".join(place)) if place else None
        if found is not None and (call := _call(*found)) is not None:
            return call
    return None


def _place(module: str, name: str) -> tuple[str, str] | None:
    """Where a name of a module is defined: there, or where it is imported from."""
    for node in _body(module):
        if isinstance(node, Definition) and node.name == name:
            return module, name
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return node.module, alias.name
    return None


def _body(module: str) -> list[ast.stmt]:
    parsed = _parse(module)
    return parsed.body if parsed else []


def _evaluate(annotation: ast.expr, module: str) -> Any:
    """The type that an annotation in a module stands for.

    Raises:
        NameError: it uses a name whose value is not to be had without importing the module.
    """
    known = {name: _value(name, module) for name in _names(annotation)}
    return eval(compile(ast.Expression(annotation), "<annotation>", "eval"), known)


def _value(name: str, module: str) -> Any:
    """The value of a name in a module: built in, imported, or assigned at its top level."""
    for node in _body(module):
        if isinstance(node, ast.Assign) and [getattr(t, "id", "") for t in node.targets] == [name]:
            return _evaluate(node.value, module)
    place = _place(module, name)
    if place is None:
        if hasattr(builtins, name):
            return getattr(builtins, name)
        raise NameError(name)
    origin, original = place
    if origin == module or origin.partition(".")[0] == "torch":
        return _Opaque(name, (), {})
    if origin.startswith(SLOW) and origin not in sys.modules:
        return _value(original, origin)
    return getattr(import_module(origin), original)


class _Opaque(type):
    """Stands for a class, or a module of classes, that no value of a configuration is of."""

    def __getattr__(cls, name: str) -> _Opaque:
        if name.startswith("__"):
            raise AttributeError(name)
        return cls


def _names(node: ast.AST) -> Iterator[str]:
    return (inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name))
