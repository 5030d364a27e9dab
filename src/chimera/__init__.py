"""Hybrid language models from interchangeable parts, from Python: `docs/library.md`.

    import chimera as ch

    model = ch.build("mixer=retnet", "quant=bitnet158")       # a model; model(ids).logits
    layer = ch.mixer("retnet", dim=128, heads=4, causal=True)  # a layer; layer(x)
    run = ch.train("mixer=retnet", "scale=smoke")              # as `chimera train` does

Nothing is imported before it is used, as torch takes seconds. A mistake raises a ValueError of one
line that says what is allowed.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from chimera import program

if TYPE_CHECKING:
    from chimera.adapter import graft as graft
    from chimera.api.models import build as build
    from chimera.api.models import load as load
    from chimera.api.parts import ffn as ffn
    from chimera.api.parts import mixer as mixer
    from chimera.api.parts import norm as norm
    from chimera.api.parts import quant as quant
    from chimera.api.runs import data as data
    from chimera.api.runs import runs as runs
    from chimera.api.runs import train as train

__version__ = program.VERSION

#: Functions of the library and the modules that define them.
_FUNCTIONS = {
    **dict.fromkeys(("mixer", "norm", "ffn", "quant"), "chimera.api.parts"),
    **dict.fromkeys(("build", "load"), "chimera.api.models"),
    **dict.fromkeys(("data", "train", "runs"), "chimera.api.runs"),
}
#: Functions that have the name of a subpackage.
_BOTH = ("mixer", "norm", "ffn", "quant", "data", "train")
#: Public modules by their short names.
_MODULES = {"graft": "chimera.adapter.graft"}

__all__ = [*_FUNCTIONS, *_MODULES]


class _Callable(ModuleType):
    """A subpackage that is a function too: `chimera.mixer` has the mixers, and makes a layer."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _function(self.__name__.rpartition(".")[2])(*args, **kwargs)

    @property
    def __signature__(self) -> Any:
        from inspect import signature

        return signature(_function(self.__name__.rpartition(".")[2]))


class _Package(ModuleType):
    """This package; Python sets a subpackage as its attribute when it has imported it."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _BOTH and isinstance(value, ModuleType):
            value.__class__ = _Callable
        super().__setattr__(name, value)


def _function(name: str) -> Any:
    return getattr(import_module(_FUNCTIONS[name]), name)


def __getattr__(name: str) -> Any:
    if name in _BOTH:
        return import_module(f"chimera.{name}")
    if name in _FUNCTIONS:
        return _function(name)
    if name in _MODULES:
        return import_module(_MODULES[name])
    raise AttributeError(f"module 'chimera' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


sys.modules[__name__].__class__ = _Package
