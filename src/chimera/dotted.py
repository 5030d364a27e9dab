"""Read and change nested mappings by dotted keys: `get(config, "optim.lr")`.

A mapping is a dictionary or a `DictConfig` of OmegaConf.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def holder(node: Any, key: str) -> tuple[Any, str]:
    """The mapping that has the last part of a dotted key, and that part; None without the key."""
    *parents, leaf = key.split(".")
    for part in parents:
        node = node[part] if isinstance(node, Mapping) and part in node else None
    return (node if isinstance(node, Mapping) and leaf in node else None), leaf


def has(node: Any, key: str) -> bool:
    """Whether there is such a key."""
    return holder(node, key)[0] is not None


def get(node: Any, key: str, default: Any = None) -> Any:
    """The value of a dotted key; `default` if it is absent."""
    found, leaf = holder(node, key)
    return default if found is None else found[leaf]


def put(node: Any, key: str, value: Any) -> None:
    """Set a dotted key that is there already; any other is left out."""
    found, leaf = holder(node, key)
    if found is not None:
        found[leaf] = value


def drop(node: Any, key: str) -> None:
    """Remove a dotted key, if it is there."""
    found, leaf = holder(node, key)
    if found is not None:
        del found[leaf]


def nested(key: str, value: Any) -> Any:
    """A value inside the mappings of a dotted key; itself for an empty one."""
    for part in reversed(key.split(".") if key else []):
        value = {part: value}
    return value


def walk(node: Any, prefix: str = "", *, lists: bool = False) -> Iterator[tuple[str, Any]]:
    """Dotted key and value of everything inside, outer mappings before what they hold.

    Args:
        node: plain containers.
        prefix: of the keys.
        lists: go into lists too, whose places count as keys.
    """
    for name, value in node.items() if isinstance(node, Mapping) else enumerate(node):
        yield f"{prefix}{name}", value
        if isinstance(value, Mapping) or (lists and isinstance(value, list)):
            yield from walk(value, f"{prefix}{name}.", lists=lists)


def flatten(node: Mapping[str, Any]) -> dict[str, Any]:
    """Values by dotted key; a list and an empty mapping are values."""
    return {k: v for k, v in walk(node) if not isinstance(v, Mapping) or not v}
