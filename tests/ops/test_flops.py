"""FLOPs of single operations against formulas by hand, and against torch's own counter."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from chimera.ops.flops import Count

sizes = st.integers(1, 9)


def counted(work: Callable[[], Tensor]) -> tuple[int, int]:
    """FLOPs of products in a forward pass, and in both passes."""
    with Count() as counter:
        out = work()
        forward = counter.products
        out.float().sum().backward()
    return forward, counter.products


@given(sizes, sizes, sizes, sizes, st.booleans(), st.sampled_from(["cpu", "meta"]))
def test_a_linear_layer(b: int, t: int, d: int, e: int, bias: bool, device: str) -> None:
    layer = nn.Linear(d, e, bias=bias, device=device)
    x = torch.ones(b, t, d, device=device, requires_grad=True)
    forward = 2 * b * t * d * e
    assert counted(lambda: layer(x)) == (forward, 3 * forward)


@given(sizes, sizes, sizes, sizes, st.sampled_from(["cpu", "meta"]))
def test_attention_by_products_and_in_one_operation(
    h: int, t: int, s: int, k: int, device: str
) -> None:
    q = torch.ones(1, h, t, k, device=device, requires_grad=True)
    kv = torch.ones(1, h, s, k, device=device, requires_grad=True)
    forward = 4 * h * t * s * k
    by_hand = counted(lambda: (q @ kv.mT).softmax(-1) @ kv)
    assert by_hand == (forward, 3 * forward)
    assert counted(lambda: F.scaled_dot_product_attention(q, kv, kv)) == by_hand


@pytest.mark.parametrize(
    ("kernel", "heads"),
    [("flash", 4), ("flash", 2), ("cudnn", 4), ("cudnn", 2), ("efficient", 4)],  # it shares none
)
def test_the_kernels_of_a_gpu_count_as_the_products_do(kernel: str, heads: int) -> None:
    q = torch.ones(1, 4, 8, 16, device="meta", requires_grad=True)
    kv = torch.ones(1, heads, 8, 16, device="meta", requires_grad=True)
    fused = getattr(torch.ops.aten, f"_scaled_dot_product_{kernel}_attention")
    more = () if kernel == "flash" else (None, True)  # no bias, statistics for the backward pass
    forward = 4 * 4 * 8 * 8 * 16
    assert counted(lambda: fused(q, kv, kv, *more)[0]) == (forward, 3 * forward)


@given(sizes, sizes, sizes, st.integers(1, 3))
def test_a_convolution(c: int, e: int, t: int, width: int) -> None:
    layer = nn.Conv1d(c, e, width, padding=width - 1, device="meta")
    x = torch.ones(1, c, t, device="meta")
    forward, _ = counted(lambda: layer(x))
    assert forward == 2 * c * e * width * (t + width - 1)


def test_integer_products_count_like_others() -> None:
    a = torch.ones(32, 16, dtype=torch.int8)
    with Count() as counter:
        torch._int_mm(a, torch.ones(16, 8, dtype=torch.int8))
    assert counter.products == 2 * 32 * 16 * 8


def test_what_is_recomputed_does_not_count() -> None:
    layer, x = nn.Linear(4, 6), torch.ones(3, 4, requires_grad=True)
    plain = counted(lambda: layer(x))
    again = counted(lambda: checkpoint(layer, x, use_reentrant=False))
    assert again == plain == (2 * 3 * 4 * 6, 3 * 2 * 3 * 4 * 6)


def test_a_loop_counts_each_turn_though_shapes_are_remembered() -> None:
    weight = torch.ones(4, 4, device="meta")

    def loop() -> Tensor:
        h = torch.zeros(2, 4, device="meta", requires_grad=True)
        for _ in range(7):
            h = torch.tanh(h @ weight).mul_(2.0)
        return h

    with Count() as counter:
        loop()
    assert counter.products == 7 * 2 * 2 * 4 * 4
    assert counter.elementwise == (1 + 7 * 2) * 8  # zeros, then tanh and product of each turn
    with FlopCounterMode(display=False) as theirs:
        loop()
    assert counter.products == theirs.get_total_flops()


def test_results_on_a_device_with_numbers_are_those_of_torch() -> None:
    x = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
    with Count():
        found = (x.add_(1).t() @ x).sort(-1)
    assert torch.equal(found.values, (x.t() @ x).sort(-1).values)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_numbers_written_by_other_operations(device: str) -> None:
    x = torch.ones(3, 5, device=device)
    with Count() as counter:
        (x.exp() + x).sum()
        x.t().unsqueeze(0)  # writes nothing
    assert (counter.products, counter.elementwise) == (0, 15 + 15 + 1)
