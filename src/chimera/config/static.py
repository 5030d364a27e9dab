"""Read constructor signatures and class attributes from source code, without importing torch.

Importing torch takes 1.5 s and Lightning 3 s; a misspelt key is refused before that. The signature
stays the only schema. Modules whose source does not suffice (a type made by a function, a base
class of torch) are imported.
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
#: Folders and modules of the package that import torch.
ROOMS = (
    *("mixer", "norm", "quant", "ffn", "position", "adapter"),
    *("optim", "callback", "task", "train", "contract", "site", "ops"),
)
SLOW = tuple(f"{PACKAGE}.{room}" for room in ROOMS)
_UNSET = object()
Definition = ast.ClassDef | ast.FunctionDef


def keywords(target: str) -> dict[str, Any] | None:
    """Read the keyword-only arguments of a class or function with their types.

    Args:
        target: dotted path.

    Returns:
        Type by name; None if the source does not tell them, or `target` is quick to import.
    """
    definition = _definition(target)
    if definition is None:
        return None
    call = _call(*definition)
    if call is None:
        return None if getattr(definition[1], "bases", True) else {}
    module, function = call
    try:
        return {
            argument.arg: _evaluate(argument.annotation, module)
            for argument in function.args.kwonlyargs
            if argument.annotation is not None
        }
    except NameError:
        return None


def attribute(target: str, name: str, default: Any = _UNSET) -> Any:
    """Read a class attribute with a literal value, such as `causal` of a task.

    Args:
        target: dotted path of the class.
        name: of the attribute.
        default: value if the class does not set the attribute; without a default the class is
            imported, to look in its base classes.
    """
    definition = _definition(target)
    for node in definition[1].body if definition else ():
        if isinstance(node, ast.Assign) and [getattr(t, "id", "") for t in node.targets] == [name]:
            return ast.literal_eval(node.value)
    if definition and default is not _UNSET:
        return default
    module, _, leaf = target.rpartition(".")
    imported = getattr(import_module(module), leaf)
    return getattr(imported, name) if default is _UNSET else getattr(imported, name, default)


@cache
def _parse(module: str) -> ast.Module | None:
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        return None
    return ast.parse(Path(spec.origin).read_text(encoding="utf-8"))


def _definition(target: str) -> tuple[str, Definition] | None:
    """Module and syntax tree of a class or function; None if its module is quick to import.

    A module is quick to import if it does not import torch or is imported already.
    """
    module, _, leaf = target.rpartition(".")
    if not module.startswith(SLOW) or module in sys.modules:
        return None
    for node in _body(module):
        if isinstance(node, Definition) and node.name == leaf:
            return module, node
    return None


def _call(module: str, node: Definition) -> tuple[str, ast.FunctionDef] | None:
    """Module and syntax tree of a function, or of a class's own or inherited constructor."""
    if isinstance(node, ast.FunctionDef):
        return module, node
    for inner in node.body:
        if isinstance(inner, ast.FunctionDef) and inner.name == "__init__":
            return module, inner
    for base in node.bases:
        origin = _origin(module, base.id) if isinstance(base, ast.Name) else None
        definition = _definition(".".join(origin)) if origin else None
        if definition is not None and (call := _call(*definition)) is not None:
            return call
    return None


def _origin(module: str, name: str) -> tuple[str, str] | None:
    """Module that defines a name used in `module`, and the name in that module."""
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
    """Evaluate an annotation of a module to a type.

    Raises:
        NameError: it uses a name whose value only an import of the module would give.
    """
    values = {name: _value(name, module) for name in _names(annotation)}
    return eval(compile(ast.Expression(annotation), "<annotation>", "eval"), values)


def _value(name: str, module: str) -> Any:
    """Value of a name in a module: built in, imported, or assigned at its top level."""
    for node in _body(module):
        if isinstance(node, ast.Assign) and [getattr(t, "id", "") for t in node.targets] == [name]:
            return _evaluate(node.value, module)
    origin = _origin(module, name)
    if origin is None:
        if hasattr(builtins, name):
            return getattr(builtins, name)
        raise NameError(name)
    defining_module, original = origin
    if defining_module == module or defining_module.partition(".")[0] == "torch":
        return _Opaque(name, (), {})
    if defining_module.startswith(SLOW) and defining_module not in sys.modules:
        return _value(original, defining_module)
    return getattr(import_module(defining_module), original)


class _Opaque(type):
    """Placeholder for a class, or a module of classes, that no value in YAML can be an instance of.

    Any attribute of it is the placeholder itself, so `nn.Module` evaluates without torch.
    """

    def __getattr__(cls, name: str) -> _Opaque:
        if name.startswith("__"):
            raise AttributeError(name)
        return cls


def _names(node: ast.AST) -> Iterator[str]:
    return (inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name))
