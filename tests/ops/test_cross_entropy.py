"""Cross entropy in parts equals cross entropy of all logits, and never has all in memory."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chimera.contract_tests import zoo
from chimera.ops.cross_entropy import cross_entropy
from tests.kit import close

N, D, V = 23, 8, 11


@pytest.mark.parametrize("at_once", [1, 5 * V, 1 << 25])
def test_equals_the_plain_form(at_once: int) -> None:
    head = nn.Linear(D, V).double()
    x = torch.randn(N, D, dtype=torch.double, requires_grad=True)
    targets = torch.randint(V, (N,))
    loss, accuracy = cross_entropy(head, x, targets, width=V, at_once=at_once)
    want = F.cross_entropy(head(x), targets)
    close(loss, want, 1e-12)
    assert accuracy == (head(x).argmax(-1) == targets).float().mean()
    parameters = [x, head.weight, head.bias]
    close(torch.autograd.grad(loss, parameters), torch.autograd.grad(want, parameters), 1e-12)


def test_at_most_at_once_logits_are_computed_at_a_time() -> None:
    head, sizes = nn.Linear(D, V), []
    head.register_forward_hook(lambda _m, _a, out: sizes.append(out.numel()))
    x = torch.randn(N, D, requires_grad=True)
    cross_entropy(head, x, torch.randint(V, (N,)), width=V, at_once=4 * V + 1)[0].backward()
    assert max(sizes) == 4 * V
    assert sum(sizes) == 2 * N * V  # once in the forward pass, once in the backward pass
    sizes.clear()
    with torch.no_grad():
        cross_entropy(head, x, torch.randint(V, (N,)), width=V, at_once=4 * V)
    assert sum(sizes) == N * V


def test_the_softmax_is_in_float32() -> None:
    def head(x: Tensor) -> Tensor:
        return (x @ torch.ones(D, V)).bfloat16() + torch.arange(V).bfloat16()

    x, targets = torch.randn(N, D), torch.randint(V, (N,))
    loss, _ = cross_entropy(head, x, targets, width=V, at_once=2 * V)
    assert loss.dtype == torch.float32
    close(loss, F.cross_entropy(head(x).float(), targets), 1e-6)


@pytest.mark.parametrize("padded", [False, True])
def test_a_models_loss_equals_that_of_its_logits(padded: bool) -> None:
    model = zoo.model(causal=True).double().eval()
    ids, index = zoo.tokens(3, 9), torch.tensor([0, 4, 13, 20]) if padded else None
    targets = zoo.tokens(1, 4 if padded else 27)[0]
    logits = model(ids, index=index).logits.flatten(0, -2)
    scored = model(ids, index=index, targets=targets, at_once=2 * 64)
    close(scored.loss, F.cross_entropy(logits, targets), 1e-12)
    assert scored.logits.shape == (0, 64)
