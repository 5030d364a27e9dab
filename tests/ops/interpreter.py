"""Triton's kernels on a CPU: its interpreter, and what it lacks to run those of others."""

from __future__ import annotations

import builtins
import sys
from typing import Any

import pytest


class Counter(int):
    """A loop's counter: the compiler makes it a tensor, which kernels cast; here it stays."""

    def to(self, _: Any) -> Counter:
        return self


def interpret(patch: pytest.MonkeyPatch) -> None:
    """From here on fla's kernels run in the interpreter; call before anything imports Triton."""
    patch.setenv("TRITON_INTERPRET", "1")
    from triton.runtime.autotuner import Autotuner

    # Configurations are timed on a GPU only; without one the first serves.
    untimed = property(lambda _: lambda call, quantiles: (call(), [0.0] * 3)[1])
    patch.setattr(Autotuner, "do_bench", untimed)
    import fla.ops.delta_rule
    import fla.ops.gated_delta_product
    import fla.ops.gated_delta_rule
    import fla.ops.simple_gla  # noqa: F401

    def counted(*ends: Any) -> Any:
        return map(Counter, builtins.range(*map(int, ends)))

    for name, module in list(sys.modules.items()):
        if name.startswith("fla.ops"):
            patch.setattr(module, "range", counted, raising=False)
