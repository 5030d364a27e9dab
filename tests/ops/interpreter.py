"""Run Triton kernels on a CPU: patches of Triton's interpreter that kernels need."""

from __future__ import annotations

import builtins
import sys
from typing import Any

import pytest
import torch


class Counter(int):
    """Loop counter with a method `to`: kernels cast it, because the compiler makes it a tensor."""

    def to(self, _: Any) -> Counter:
        return self


def round_to_bfloat16(patch: pytest.MonkeyPatch) -> None:
    """Round float32 to the nearest bfloat16, as a GPU does; the interpreter cuts bits off."""
    import triton.language as tl
    from triton.runtime import interpreter

    convert = interpreter._convert_float

    def rounded(x: Any, source: Any, target: Any, mode: Any) -> Any:
        if (source, target) != (tl.float32, tl.bfloat16):
            return convert(x, source, target, mode)
        return torch.tensor(x).bfloat16().view(torch.uint16).numpy()

    patch.setattr(interpreter, "_convert_float", rounded)


def interpret(patch: pytest.MonkeyPatch) -> None:
    """Make fla's kernels run in the interpreter; call before any import of Triton."""
    patch.setenv("TRITON_INTERPRET", "1")
    from triton.runtime.autotuner import Autotuner

    # Autotuning needs a GPU; without a GPU, use the first configuration.
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
