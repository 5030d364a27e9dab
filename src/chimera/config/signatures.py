"""Read constructor signatures and class attributes from source code, without importing torch.

Importing torch takes 1.5 s and Lightning 3 s; a misspelt key is refused before that. The signature
stays the only schema. Modules whose source does not suffice (a type made by a function, a base
class of torch) are imported.
"""

from __future__ import annotations

import ast
import builtins
import sys
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

PACKAGE = __name__.partition(".")[0]
#: Folders and modules of the package that import torch.
ROOMS = (
    *("mixer", "norm", "quant", "ffn", "position", "adapter"),
    *("optim", "callback", "task", "train", "contract", "site", "ops"),
)
SLOW = tuple(f"{PACKAGE}.{room}" for room in ROOMS)
#: Base of callbacks, whose constructor takes nothing.
CALLBACK = ("lightning.pytorch.callbacks", "Callback")
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
    call = definition and _call(target.rpartition(".")[0], definition)
    if not call:
        return None if call is None else {}
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
    if definition is not None:
        value = _assigned(definition.body).get(name)
        if value is not None:
            return ast.literal_eval(value)
        if default is not _UNSET:
            return default
    imported = resolve_name(target)
    return getattr(imported, name) if default is _UNSET else getattr(imported, name, default)


@cache
def _body(module: str) -> dict[str, Any]:
    """What each name at the top level of a module is.

    A class or function, an assigned expression, or (module, name) of what is imported.
    """
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        return {}
    body = ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body
    found: dict[str, Any] = {node.name: node for node in body if isinstance(node, Definition)}
    for node in body:
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {each.asname or each.name: (node.module, each.name) for each in node.names}
    return found | _assigned(body)


def _assigned(body: list[ast.stmt]) -> dict[str, ast.expr]:
    return {
        node.targets[0].id: node.value
        for node in body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }


def _definition(target: str) -> Definition | None:
    """Syntax tree of a class or function; None if its module is quick to import.

    A module is quick to import if it does not import torch or is imported already.
    """
    module, _, leaf = target.rpartition(".")
    if not module.startswith(SLOW) or module in sys.modules:
        return None
    found = _body(module).get(leaf)
    return found if isinstance(found, Definition) else None


def _call(module: str, node: Definition) -> tuple[str, ast.FunctionDef] | tuple[()] | None:
    """Module and syntax tree of a function, or of a class's own or inherited constructor.

    Empty for a constructor without arguments, None if a base class is not of this package.
    """
    if isinstance(node, ast.FunctionDef):
        return module, node
    for inner in node.body:
        if isinstance(inner, ast.FunctionDef) and inner.name == "__init__":
            return module, inner
    for base in node.bases:
        origin = _body(module).get(base.id) if isinstance(base, ast.Name) else None
        if origin == CALLBACK:
            return ()
        place = origin if isinstance(origin, tuple) else (module, getattr(base, "id", ""))
        definition = _definition(".".join(place))
        if definition is not None and (call := _call(place[0], definition)) is not None:
            return call
    return None if node.bases else ()


def _evaluate(annotation: ast.expr, module: str) -> Any:
    """Evaluate an annotation of a module to a type.

    Raises:
        NameError: it uses a name whose value only an import of the module would give.
    """
    names = {inner.id for inner in ast.walk(annotation) if isinstance(inner, ast.Name)}
    values = {name: _value(name, module) for name in names}
    return eval(compile(ast.Expression(annotation), "<annotation>", "eval"), values)


def _value(name: str, module: str) -> Any:
    """Value of a name in a module: built in, imported, or assigned at its top level."""
    found = _body(module).get(name)
    if found is None:
        if hasattr(builtins, name):
            return getattr(builtins, name)
        raise NameError(name)
    if isinstance(found, ast.expr):
        return _evaluate(found, module)
    if isinstance(found, Definition) or found[0].partition(".")[0] == "torch":
        return _Opaque(name, (), {})
    defining_module, original = found
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
