"""The classes and functions that a configuration may name, by their dotted names.

An exported folder has a table of its own parts in the place of this module.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

PARTS: dict[str, Callable[..., Any]] = {}
