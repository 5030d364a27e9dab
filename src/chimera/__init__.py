"""Hybrid language models from interchangeable parts."""

from importlib import import_module
from typing import Any

from chimera import program

__version__ = program.VERSION

#: Public modules by their short names; imported when they are asked for, as torch takes seconds.
_MODULES = {"graft": "chimera.adapter.graft"}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(_MODULES[name])
    raise AttributeError(f"module 'chimera' has no attribute '{name}'")
