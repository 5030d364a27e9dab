"""A step's kernels, bytes and host reads, counted on fake tensors, stay within their bounds."""

from __future__ import annotations

import pytest
import torch
from benchmarks.gpu.steps import PRESETS
from benchmarks.gpu_budget import Budget, budget, held


def test_what_is_counted() -> None:
    x = torch.ones(8, 1).expand(8, 4)
    assert held(x) == 8 * 4
    with Budget() as found:
        y = x @ torch.ones(4, 2)  # ones is a kernel too
        y.view(-1).relu_()
        y.sum().item()
    assert (found.kernels, found.reads, found.flops) == (4, 1, 2 * 8 * 4 * 2)
    # empty and filled; product; read and written; read, and the sum
    assert found.bytes == 32 + (32 + 32 + 64) + (64 + 64) + (64 + 4)


@pytest.mark.parametrize(
    ("name", "kernels", "gigabytes"),
    [("bert", 2000, 73), pytest.param("attention", 1540, 108, marks=pytest.mark.slow)],
)
def test_a_step_takes_no_more_than_it_did(name: str, kernels: int, gigabytes: float) -> None:
    found = budget(PRESETS[name])
    assert found.kernels <= kernels
    assert found.bytes / 1e9 <= gigabytes
    assert found.reads == 0
