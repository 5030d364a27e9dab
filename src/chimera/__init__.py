"""Hybrid language models from interchangeable parts, from Python: `docs/guide/library.md`.

    import chimera as ch

    model = ch.build("mixer=retnet", "quant=bitnet158")               # a model; model(ids).logits
    layer = ch.layers.mixer("retnet", dim=128, heads=4, causal=True)  # a layer; layer(x)
    run = ch.fit("mixer=retnet", "scale=smoke")                       # as `chimera train` does

Nothing is imported before it is used, as torch takes seconds. A mistake raises a ValueError of one
line that says what is allowed.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from chimera import program

if TYPE_CHECKING:
    from chimera.api import graft as graft
    from chimera.api import layers as layers
    from chimera.api.library import build as build
    from chimera.api.library import datamodule as datamodule
    from chimera.api.library import fit as fit
    from chimera.api.library import load as load
    from chimera.api.library import runs as runs

__version__ = program.VERSION

#: Public functions, of `chimera.api.library`.
_FUNCTIONS = ("build", "load", "datamodule", "fit", "runs")
#: Public modules by their short names.
_MODULES = {"layers": "chimera.api.layers", "graft": "chimera.api.graft"}

__all__ = [*_FUNCTIONS, *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _FUNCTIONS:
        return getattr(import_module("chimera.api.library"), name)
    if name in _MODULES:
        return import_module(_MODULES[name])
    raise AttributeError(f"module 'chimera' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
