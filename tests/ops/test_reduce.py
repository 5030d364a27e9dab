"""Statistics of a batch that two processes share are those of one process that has all of it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from chimera.contract import Context
from chimera.contract_tests import zoo
from chimera.norm.qdyt import QDyT
from chimera.ops import reduce
from chimera.ops.routing import balance
from chimera.quant.shared.inputs import PerChannel
from tests.ops.processes import together

X = torch.randn(4, 6, 5, generator=torch.Generator().manual_seed(0))
REAL = torch.arange(6) < torch.tensor([6, 2, 5, 1])[:, None]
HALVES = (slice(0, 3), slice(3, 4))  # of unequal numbers of tokens


def close(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-7)


def test_one_process_keeps_its_tensors() -> None:
    assert reduce.participants() == 1
    assert reduce.total(X) is X
    assert reduce.largest(X) is X


def test_sums_and_their_gradients_are_of_all_processes() -> None:
    def work(rank: int) -> tuple[Tensor, Tensor, Tensor]:
        x = torch.tensor([1.0 + rank, 2.0], requires_grad=True)
        total = reduce.total(x)
        (total.square().sum() * (rank + 1)).backward()
        assert x.grad is not None
        return total.detach(), reduce.largest(x.detach()), x.grad

    for total, largest, gradient in together(2, work):
        assert total.tolist() == [3.0, 4.0]
        assert largest.tolist() == [2.0, 2.0]
        assert gradient.tolist() == [18.0, 24.0]  # 2·total, of losses with weights 1 and 2


@pytest.mark.parametrize("masked", [True, False])
def test_the_balance_of_experts_and_its_gradient(masked: bool) -> None:
    weight = torch.randn(5, 3, generator=torch.Generator().manual_seed(1))

    def of(rows: slice) -> tuple[Tensor, Tensor]:
        router = weight.clone().requires_grad_()
        probs = (X[rows].flatten(0, 1) @ router).softmax(-1)
        loss = balance(probs, probs.argmax(-1), REAL[rows].flatten() if masked else None)
        loss.backward()
        assert router.grad is not None
        return loss.detach(), router.grad

    loss, gradient = of(slice(0, 4))
    shares = together(2, lambda rank: of(HALVES[rank]))
    for share, _ in shares:
        close(share, loss)
    close(torch.stack([g for _, g in shares]).mean(0), gradient)  # DDP takes the mean


def of_module(make: Callable[[], nn.Module], call: Callable[[Any, slice], Tensor]) -> None:
    """Outputs and buffers of two processes are those of one, after two steps."""

    def work(rows: slice) -> tuple[Tensor, dict[str, Tensor]]:
        module = make().train()
        for _ in range(2):
            y = call(module, rows)
        return y.detach(), dict(module.named_buffers())

    whole, buffers = work(slice(0, 4))
    shares = together(2, lambda rank: work(HALVES[rank]))
    close(torch.cat([y for y, _ in shares]), whole)
    for _, own in shares:
        for name, buffer in buffers.items():
            close(own[name].float(), buffer.float())


def test_maxima_of_a_grid() -> None:
    of_module(lambda: PerChannel(5, 4, 0.1), lambda grid, rows: grid(X[rows]))


def test_the_running_mean_of_qdyt() -> None:
    of_module(lambda: QDyT(5), lambda norm, rows: norm(X[rows], REAL[rows]))


def test_experts_without_tokens_on_one_process_wait_for_no_one() -> None:
    """Experts with a grid per channel reduce maxima; one process has tokens for two of four."""

    made: Any = zoo.model(ffn="moe", quant="hbit").backbone.blocks[0].ffn
    made.capacity = {True: None, False: None}
    copies = [copy.deepcopy(made).train() for _ in range(3)]

    def of(rows: slice, moe: Any) -> tuple[Tensor, Tensor]:
        x = torch.randn(4, 1, 32, generator=torch.Generator().manual_seed(3))[rows]
        out = moe(x, Context(torch.zeros(1, 1, dtype=torch.long)))
        (out.y.square().mean() + out.aux["balance"]).backward()
        return out.y.detach(), out.aux["balance"].detach()

    y, loss = of(slice(0, 4), copies[2])
    shares = together(2, lambda rank: of(HALVES[rank], copies[rank]))
    torch.testing.assert_close(torch.cat([s[0] for s in shares]), y, rtol=1e-5, atol=1e-6)
    for share in shares:
        close(share[1], loss)
