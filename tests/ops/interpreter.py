"""Triton's interpreter, in which kernels for a GPU run on a CPU."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

import pytest

needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")


def interpreted(name: str) -> Iterator[ModuleType]:
    """The module, interpreted; imported anew afterwards, by whoever wants it compiled."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        for other in [*sys.modules]:  # Triton's own functions are interpreted if imported here
            if other == name or ((other + ".").startswith("triton.") and "._C" not in other):
                patch.delitem(sys.modules, other)
        yield import_module(name)
        sys.modules.pop(name, None)
