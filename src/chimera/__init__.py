"""Hybrid language models from interchangeable parts."""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

#: Public modules by their short names; imported when they are asked for, as torch takes seconds.
_MODULES = {"graft": "chimera.adapter.graft"}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(_MODULES[name])
    raise AttributeError(f"module 'chimera' has no attribute '{name}'")
