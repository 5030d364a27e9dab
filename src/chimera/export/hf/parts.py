"""The class or function that a configuration names.

An exported folder has a table of its own parts in the place of this module.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hydra.utils import get_object

from chimera.config.trusted_config import declared


def named(target: str) -> Callable[..., Any]:
    """The part of a dotted name.

    Raises:
        ValueError: no file of the configuration declares it.
    """
    if not any(target in names for names in declared().values()):
        raise ValueError(f"{target} is not declared: no file of conf/ or of a plugin names it")
    found: Callable[..., Any] = get_object(target)
    return found
