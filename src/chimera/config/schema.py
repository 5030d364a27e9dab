"""Check keys, types and ranges of a `_target_` node against the signature of its constructor.

The signature is the schema, so each component is described in one place only. Importing torch takes
1.5 s and Lightning 3 s, and a mistake is told before that: signatures and class attributes of a
module that imports them are read from its source. A module whose source does not suffice is
imported.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import json
import math
import re
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import is_dataclass
from functools import cache
from importlib import import_module
from pkgutil import resolve_name
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from hydra.errors import HydraException
from hydra.utils import instantiate
from pydantic import ConfigDict, StringConstraints, TypeAdapter, ValidationError

from chimera.config.groups import BUILT
from chimera.errors import UserError, nearest, one_line
from chimera.paths import PACKAGE
from chimera.types import NAME

STRICT = ConfigDict(strict=True, arbitrary_types_allowed=True, allow_inf_nan=False)
#: Patterns of texts in words.
PATTERNS = {
    f"^{NAME}$": " of letters, digits and any of _ . + -, without spaces",
    r"^\d+:\d\d:\d\d:\d\d$": " as DD:HH:MM:SS",
}
#: Keys of a node that are not arguments: Hydra's, the callbacks that a component needs, and other
#: parts that it brings along (`chimera.config.choices.COMPANIONS`).
RESERVED = {"_target_", "_partial_", "callbacks", "with"}
#: Groups of which a run has one node each.
NODES = (*BUILT, "scale", "launcher", "guard")
#: Groups whose class is called later, with what the model knows of the place.
LATER = ("mixer", "norm", "ffn", "position", "adapter", "task")
_UNSET = object()


def check_targets(values: Mapping[str, Any]) -> None:
    """Refuse a node that names no class.

    Args:
        values: of a composed configuration, by dotted key.

    Raises:
        UserError: naming the node.
    """
    for key, value in {**dict.fromkeys(f"{group}._target_" for group in NODES), **values}.items():
        if f".{key}".endswith("._target_") and not re.fullmatch(r"\w+(\.\w+)+", str(value)):
            raise UserError(
                f"{key}={shown(value)} names no class; it takes a dotted path, as in package.Class"
            )


def call_later(config: Any, where: str = "") -> None:
    """Set `_partial_: true` in the nodes of groups whose class is called later.

    Args:
        config: a mapping with a node per group; changed in place.
        where: it was read, for the message.

    Raises:
        UserError: a node says otherwise.
    """
    for group in LATER:
        given = config[group].get("_partial_", True)
        if given is not True:
            raise UserError(
                f"{where}{group}._partial_={shown(given)} is not allowed; the model calls a"
                f" {group} itself, so leave it out"
            )
        config[group]["_partial_"] = True


def shown(value: object) -> str:
    """A value as YAML has it, for a message: short and on one line."""
    text = json.dumps(value) if isinstance(value, bool | None) else one_line(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def check_node(where: str, node: Mapping[str, Any], *, deep: bool = True) -> None:
    """Check one `_target_` node and all nodes inside it.

    Args:
        where: dotted key of the node.
        node: as composed.
        deep: False leaves inner nodes unchecked, whose classes may be slow to import.

    Raises:
        UserError: naming the key, its value, and the allowed ones.
    """
    if not isinstance(node, Mapping) or "_target_" not in node:
        raise UserError(f"{where} names no class; it takes {where}._target_=package.Class")
    parameters = arguments(node["_target_"])
    for key, value in node.items():
        if key in RESERVED:
            continue
        at = _check_key(where, key, parameters)
        held = nodes(at, value) if isinstance(value, Mapping) else []
        if not any(isinstance(inner, Mapping) and "_target_" in inner for _, inner in held):
            check_value(at, value, parameters[key])
            continue
        for path, inner in held if deep else ():
            check_node(path, inner)
            if _is_called(parameters[key]) and inner.get("_partial_") is not True:
                raise UserError(f"{path} is called later; it takes {path}._partial_=true")
    for name, callback in (node.get("callbacks") or {}).items():
        check_node(f"{where}.callbacks.{name}", callback)


def _check_key(where: str, key: object, allowed: Collection[str]) -> str:
    """The dotted key of an entry.

    Raises:
        UserError: it is none of the allowed ones.
    """
    at = f"{where} {key}" if where.endswith(":") else f"{where}.{key}"
    if key not in allowed:
        of, near = where.removesuffix(":"), nearest(str(key), allowed)
        raise UserError(f"{at} is no key of {of}{near} (it has {', '.join(allowed) or 'none'})")
    return at


def check_value(where: str, value: Any, hint: Any) -> None:
    """Check that a value has the type and range of a type hint.

    Args:
        where: dotted key of the value, or `<choice>:`, for the message.
        value: as composed.
        hint: a type, which may have limits (`Annotated[int, Ge(1)]`); of a mapping with known keys,
            the hint of each.

    Raises:
        UserError: it has another type or is out of range, or an unknown key.
    """
    if isinstance(hint, Mapping):
        check_value(where, value, dict[str, Any] | None)
        for key, entry in (value or {}).items():
            check_value(_check_key(where, key, hint), entry, hint[key])
        return
    try:
        TypeAdapter(hint, config=STRICT).validate_python(value)
    except ValidationError as error:
        for part in (hint, *get_args(hint)) if isinstance(value, dict) else ():
            for key, entry in value.items() if get_origin(part) is dict else ():
                check_value(f"{where}.{key}", entry, get_args(part)[1])  # it, not the whole
        if isinstance(value, float) and math.isinf(value):
            raise UserError(f"{where}={value} is not allowed; it takes a finite number") from error
        close = nearest(str(value), map(str, _names(hint)))
        raise UserError(
            f"{where}={shown(value)} is not allowed; it takes {describe(hint)}{close}"
        ) from error


def _names(hint: Any) -> list[object]:
    """Values of the literal types in a type."""
    if get_origin(hint) is Literal:
        return list(get_args(hint))
    return [name for part in get_args(hint) for name in _names(part)]


def describe(hint: Any) -> str:
    """Describe a type in English, such as `an integer of at least 1 or null`."""
    origin = get_origin(hint)
    args = get_args(hint)
    if origin is Annotated:
        return describe(args[0]) + "".join(_limit(limit) for limit in args[1:])
    if origin is Literal:
        return "one of " + ", ".join(map(str, args))
    if origin is Union or (args and type(hint).__name__ == "UnionType"):
        return " or ".join(describe(arg) for arg in args)
    if origin is list:
        return f"a list, each {describe(args[0])}"
    if origin is Callable:
        return "a node with _target_ and _partial_: true"
    if origin is dict:
        return f"a mapping, each value {describe(args[1])}"
    names = {int: "an integer", float: "a number", bool: "true or false", str: "a text", Any: "any"}
    return "null" if hint in (None, type(None)) else names.get(hint, str(hint))


def _limit(limit: object) -> str:
    if isinstance(limit, StringConstraints):
        return PATTERNS.get(str(limit.pattern), f" that matches {limit.pattern}")
    words = {"ge": "of at least", "gt": "above", "le": "and at most", "lt": "and below"}
    return "".join(
        f" {text} {getattr(limit, of)}" for of, text in words.items() if hasattr(limit, of)
    )


def _is_called(hint: Any) -> bool:
    """Whether a type is that of a function, or of several by name."""
    return get_origin(hint) is Callable or any(get_origin(a) is Callable for a in get_args(hint))


def nodes(where: str, value: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Dotted keys and nodes of a value: itself if it has `_target_`, else its entries."""
    return (
        [(where, value)] if "_target_" in value else [(f"{where}.{k}", v) for k, v in value.items()]
    )


@cache
def arguments(path: str) -> dict[str, Any]:
    """Hyperparameters of a class or function: arguments that YAML sets, with their types.

    Raises:
        UserError: the path cannot be imported, or Hydra does not let a file call it.
    """
    from_source = keywords(path)
    if from_source is not None:
        return from_source
    try:
        instantiate({"_target_": path, "_partial_": True})  # Hydra's rules: some may not be called
        target = resolve_name(path)
        found = inspect.signature(target, eval_str=True)
    except (HydraException, AttributeError, ValueError, TypeError, NameError) as error:
        raise UserError(
            f"_target_={path} cannot be imported ({one_line(error)}); name a class or function by"
            " its dotted path"
        ) from error
    # All fields of a settings dataclass are keys. Of a component, keyword-only arguments and those
    # with a default are keys; the others (site, parts) are passed by the model's assembly.
    return {
        p.name: Any if p.annotation is p.empty else p.annotation
        for p in found.parameters.values()
        if is_dataclass(target) or p.kind is p.KEYWORD_ONLY or p.default is not p.empty
    }


def keywords(target: str) -> dict[str, Any] | None:
    """The keyword-only arguments of a class or function with their types, from its source.

    Args:
        target: dotted path.

    Returns:
        Type by name; None if `target` is imported already or its source does not tell.
    """
    module, _, found = _definition(target)
    if isinstance(found, ast.ClassDef) and not found.decorator_list:  # of a dataclass
        constructor = _by_name(found.body).get("__init__")
        if constructor is None:  # the first base's; of another package, it takes nothing from YAML
            base = f"{module}.{ast.unparse(found.bases[0])}" if found.bases else ""
            return keywords(base) if _definition(base)[0].startswith("chimera.") else {}
        found = constructor
    if not isinstance(found, ast.FunctionDef):
        return None
    annotated = {each.arg: each.annotation for each in found.args.kwonlyargs if each.annotation}
    return {name: _evaluated(module, annotation) for name, annotation in annotated.items()}


def attribute(target: str, name: str, default: Any = _UNSET) -> Any:
    """Read a class attribute with a literal value, such as `causal` of a task, from its source.

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

    The statement is None if the module is imported already, or is none of this package.
    """
    module, _, name = path.rpartition(".")
    if not module.startswith("chimera.") or module in sys.modules:
        return module, name, None
    found = _statements(module).get(name)
    if isinstance(found, ast.ImportFrom):
        original = next(each.name for each in found.names if name in (each.asname, each.name))
        return _definition(f"{found.module}.{original}")
    return module, name, found


@cache
def _statements(module: str) -> dict[str, ast.stmt]:
    path = PACKAGE.joinpath(*module.split(".")[1:])  # importing its folder might import torch
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return _by_name(ast.parse(file.read_text("utf-8") if file.is_file() else "").body)


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


def _evaluated(module: str, annotation: ast.expr) -> Any:
    """The value of an annotation in a module's source; Any where it speaks of `nn.Module`."""
    names = {each.id for each in ast.walk(annotation) if isinstance(each, ast.Name)}
    try:
        return eval(ast.unparse(annotation), {}, {name: _value_of(module, name) for name in names})
    except AttributeError:
        return Any


def _value_of(module: str, name: str) -> Any:
    """The value of a name in a module's source.

    A class of torch, or of a module that imports torch, is Any: no value in YAML is one.
    """
    if name not in _statements(module):
        return getattr(builtins, name)
    origin, original, found = _definition(f"{module}.{name}")
    if isinstance(found, ast.Assign):
        return _evaluated(origin, found.value)
    if found is not None or origin.startswith("torch"):
        return Any
    return getattr(import_module(origin), original)
