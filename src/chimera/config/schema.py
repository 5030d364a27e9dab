"""Check keys, types and ranges of a `_target_` node against the signature of its constructor.

The signature is the schema, so each component is described in one place only.
"""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from functools import cache
from pkgutil import resolve_name
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import ConfigDict, StringConstraints, TypeAdapter, ValidationError

from chimera.config import signatures
from chimera.config.groups import ZOO
from chimera.errors import UserError, nearest
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
NODES = (
    "model",
    *ZOO,
    "data",
    "tokenizer",
    "task",
    "trainer",
    "optim",
    "scale",
    "launcher",
    "guard",
)
#: Groups whose class is called later, with what the model knows of the place.
LATER = ("mixer", "norm", "ffn", "position", "adapter", "task")


def check_targets(values: Mapping[str, Any]) -> None:
    """Refuse a node that names no class.

    Args:
        values: of a composed configuration, by dotted key.

    Raises:
        UserError: naming the node.
    """
    found = {key: value for key, value in values.items() if f".{key}".endswith("._target_")}
    for key, value in (dict.fromkeys(f"{group}._target_" for group in NODES) | found).items():
        if not isinstance(value, str):
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
    """A value as YAML has it."""
    return json.dumps(value) if isinstance(value, bool | None) else str(value)


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
        if key not in parameters:
            raise UserError(
                f"{where}.{key} is no key of {where}{nearest(key, parameters)}"
                f" (it has {', '.join(parameters) or 'none'})"
            )
        if _holds_nodes(value):
            for path, inner in nodes(f"{where}.{key}", value) if deep else ():
                check_node(path, inner)
                if _is_called(parameters[key]) and inner.get("_partial_") is not True:
                    raise UserError(f"{path} is called later; it takes {path}._partial_=true")
        else:
            check_value(f"{where}.{key}", value, parameters[key])
    for name, callback in (node.get("callbacks") or {}).items():
        check_node(f"{where}.callbacks.{name}", callback)


def check_value(where: str, value: Any, hint: Any) -> None:
    """Check that a value has the type and range of a type hint.

    Args:
        where: dotted key of the value, for the message.
        value: as composed.
        hint: a type, which may have limits (`Annotated[int, Ge(1)]`).

    Raises:
        UserError: it has another type or is out of range.
    """
    try:
        TypeAdapter(hint, config=STRICT).validate_python(value)
    except ValidationError as error:
        if get_origin(hint) is dict and isinstance(value, dict):  # name the entry, not the whole
            for key, entry in value.items():
                check_value(f"{where}.{key}", entry, get_args(hint)[1])
        if isinstance(value, float) and math.isinf(value):
            raise UserError(f"{where}={value} is not allowed; it takes a finite number") from error
        close = nearest(str(value), map(str, get_args(hint))) if get_origin(hint) is Literal else ""
        raise UserError(
            f"{where}={shown(value)} is not allowed; it takes {describe(hint)}{close}"
        ) from error


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


@cache
def arguments(path: str) -> dict[str, Any]:
    """Hyperparameters of a class or function: arguments that YAML sets, with their types.

    Raises:
        UserError: the path cannot be imported.
    """
    from_source = signatures.keywords(path)
    if from_source is not None:
        return from_source
    try:
        target = resolve_name(path)
        found = inspect.signature(target, eval_str=True)
    except (ImportError, AttributeError, ValueError, TypeError, NameError) as error:
        raise UserError(
            f"_target_={path} cannot be imported ({error}); name a class or function by its dotted"
            " path"
        ) from error
    # All fields of a settings dataclass are keys. Of a component, keyword-only arguments and those
    # with a default are keys; the others (site, parts) are passed by the model's assembly.
    return {
        p.name: Any if p.annotation is p.empty else p.annotation
        for p in found.parameters.values()
        if is_dataclass(target) or p.kind is p.KEYWORD_ONLY or p.default is not p.empty
    }


def _holds_nodes(value: Any) -> bool:
    return isinstance(value, Mapping) and (
        "_target_" in value
        or any(isinstance(v, Mapping) and "_target_" in v for v in value.values())
    )


def _is_called(hint: Any) -> bool:
    """Whether a type is that of a function, or of several by name."""
    return get_origin(hint) is Callable or any(get_origin(a) is Callable for a in get_args(hint))


def nodes(where: str, value: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Dotted keys and nodes of a value: itself if it has `_target_`, else its entries."""
    return (
        [(where, value)] if "_target_" in value else [(f"{where}.{k}", v) for k, v in value.items()]
    )
