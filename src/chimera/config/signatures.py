"""Read constructor signatures and class attributes from source code, without importing torch.

Importing torch takes 1.5 s and Lightning 3 s; a misspelt key is refused before that. The signature
stays the only schema. A module whose source does not suffice is imported.
"""

from __future__ import annotations

import ast
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
_UNSET = object()


def keywords(target: str) -> dict[str, Any] | None:
    """The keyword-only arguments of a class or function with their types.

    Args:
        target: dotted path.

    Returns:
        Type by name; None if `target` is quick to import or its source does not tell.
    """
    module, _, found = _definition(target)
    if isinstance(found, ast.ClassDef):
        constructor = _by_name(found.body).get("__init__")
        if constructor is None:  # the first base's; of another package, it takes nothing from YAML
            base = f"{module}.{ast.unparse(found.bases[0])}" if found.bases else ""
            ours = _definition(base)[0].startswith(PACKAGE)
            return keywords(base) if ours else {}
        found = constructor
    if not isinstance(found, ast.FunctionDef):
        return None
    types = _Values(module)
    arguments = found.args.kwonlyargs
    return {each.arg: types.of(each.annotation) for each in arguments if each.annotation}


def attribute(target: str, name: str, default: Any = _UNSET) -> Any:
    """Read a class attribute with a literal value, such as `causal` of a task.

    Args:
        target: dotted path of the class.
        name: of the attribute.
        default: value if the class does not set the attribute; without a default the class is
            imported, to look in its base classes.
    """
    found = _definition(target)[2]
    if isinstance(found, ast.ClassDef):
        value = _by_name(found.body).get(name)
        if isinstance(value, ast.Assign):
            return ast.literal_eval(value.value)
        if default is not _UNSET:
            return default
    imported = resolve_name(target)
    return getattr(imported, name) if default is _UNSET else getattr(imported, name, default)


def _definition(path: str) -> tuple[str, str, ast.stmt | None]:
    """Module, name and statement that define a dotted path, followed through imports.

    The statement is None if the module is imported already or quick to import.
    """
    module, _, name = path.rpartition(".")
    if not module.startswith(SLOW) or module in sys.modules:
        return module, name, None
    found = _statements(module).get(name)
    if isinstance(found, ast.ImportFrom):
        original = next(each.name for each in found.names if name in (each.asname, each.name))
        return _definition(f"{found.module}.{original}")
    return module, name, found


@cache
def _statements(module: str) -> dict[str, ast.stmt]:
    spec = find_spec(module)
    source = Path(spec.origin).read_text(encoding="utf-8") if spec and spec.origin else ""
    return _by_name(ast.parse(source).body)


def _by_name(body: list[ast.stmt]) -> dict[str, ast.stmt]:
    """Statements by the names that they define."""
    found: dict[str, ast.stmt] = {}
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found[node.name] = node
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = node
        elif isinstance(node, ast.ImportFrom):
            found |= {each.asname or each.name: node for each in node.names}
    return found


class _Values(dict[str, Any]):
    """Values of the names of a module, each found when an annotation asks for it.

    A class of torch, or of a module that imports torch, is Any: no value in YAML is one.
    """

    def __init__(self, module: str) -> None:
        super().__init__()
        self.module = module

    def of(self, annotation: ast.expr) -> Any:
        """The value of an annotation; Any where it speaks of `nn.Module`."""
        try:
            return eval(compile(ast.Expression(annotation), "<annotation>", "eval"), {}, self)
        except AttributeError:
            return Any

    def __missing__(self, name: str) -> Any:
        if name not in _statements(self.module):
            raise KeyError(name)  # Python looks among its built-ins
        module, original, found = _definition(f"{self.module}.{name}")
        if isinstance(found, ast.Assign):
            return _Values(module).of(found.value)
        if found is not None or module.startswith("torch"):
            return Any
        return getattr(import_module(module), original)
