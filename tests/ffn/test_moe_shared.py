"""Shared experts and loss-free balancing against loops over tokens; loads of several processes."""

from __future__ import annotations

import copy
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from chimera.callback.part.loads import LoadBalance
from chimera.ffn.mlp import MLP
from chimera.ffn.moe_shared import SharedMoE
from tests.kit import close, ctx, double, grads, parts, ragged, site
from tests.ops.processes import together


def build(**options: Any) -> SharedMoE:
    made = double(
        lambda: SharedMoE(site(causal=False), parts(), expert=partial(MLP, expand=1), **options)
    )
    nn.init.normal_(made.router.weight, std=0.2)
    made.bias += torch.randn(len(made.bias)).double() * 0.1
    return made


def by_loops(moe: SharedMoE, x: Tensor) -> tuple[Tensor, Tensor]:
    """The equations of 2408.15664, a token at a time: outputs, and choices of each expert."""
    ys, loads, one = [], torch.zeros(len(moe.experts)).double(), ctx(tokens=1)
    for token in x.flatten(0, 1):
        logits = moe.router.weight @ token
        s = logits.sigmoid() if moe.scores == "sigmoid" else logits.softmax(0)
        chosen = (s + moe.bias).sort(descending=True).indices[: moe.top_k]
        loads[chosen] += 1
        total = s[chosen].sum() if moe.normalise else 1.0
        gate = (moe.shared_gate.weight @ token).sigmoid() if moe.shared_gate else 1.0
        y = sum((gate * e(token[None, None], one).y[0, 0] for e in moe.shared), torch.zeros(()))
        for i in chosen.tolist():
            y = y + moe.scale * s[i] / total * moe.experts[i](token[None, None], one).y[0, 0]
        ys.append(y)
    return torch.stack(ys).view_as(x), loads


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"scores": "softmax", "shared_gate": True, "top_k": 3},
        {"shared": 2, "scale": 2.5, "normalise": False},
        {"shared": 0, "top_k": 1},
    ],
)
def test_it_is_its_equations(options: dict[str, Any]) -> None:
    moe = build(**options)
    x = torch.randn(2, 7, 32).double().requires_grad_()
    (want, loads), out = by_loops(moe, x), moe(x, ctx(tokens=7))
    close(out.y, want, 1e-10)
    weight, over = torch.randn_like(want), [x, *moe.parameters()]
    close(grads((out.y * weight).sum(), over), grads((want * weight).sum(), over), 1e-10)
    got = torch.stack([out.stats[f"expert_load_{i}"] for i in range(len(moe.experts))])
    close(got.double() * loads.sum(), loads, 1e-5)
    assert not moe.loads.any()  # counted in training only


def test_the_bias_moves_against_the_loads_and_evens_them_out() -> None:
    moe = build(rate=0.02).train()
    moe.router.weight.data[0] += 0.3  # tokens prefer the first expert
    start = moe.bias.clone()
    x = torch.randn(4, 64, 32).double().abs()
    uneven = []
    for _ in range(60):
        moe(x, ctx(tokens=64))
        loads = moe.loads.clone()
        uneven.append(float(loads.std()))
        moe.rebalance()
        if len(uneven) == 1:
            close(moe.bias, start + 0.02 * (loads.mean() - loads).sign())
    assert uneven[-1] < uneven[0] / 4
    assert not moe.loads.any()


def test_padding_is_not_counted_and_recomputation_counts_once() -> None:
    moe, mask = build().train(), ragged([3, 8], left=False)
    x = torch.randn(2, 8, 32).double().requires_grad_()
    y = checkpoint(lambda z: moe(z, ctx(mask)).y, x, use_reentrant=False)
    y.square().sum().backward()
    assert moe.loads.sum() == 11 * 2


def test_processes_count_together() -> None:
    x = torch.randn(4, 6, 32).double()
    whole = build().train()
    parts_of = [copy.deepcopy(whole) for _ in range(2)]
    whole(x, ctx(tokens=6))
    whole.rebalance()

    def work(rank: int) -> Tensor:
        moe = parts_of[rank]
        moe(x[2 * rank : 2 * rank + 2], ctx(tokens=6))
        moe.rebalance()
        return moe.bias

    for bias in together(2, work):
        close(bias, whole.bias)


def test_the_callback_moves_the_bias_after_updates_only() -> None:
    moe = build().train()
    trainer: Any = SimpleNamespace(optimizers=[torch.optim.SGD(moe.parameters(), lr=0.1)])
    callback, module = LoadBalance(), nn.Sequential(moe)
    callback.on_train_start(trainer, module)  # type: ignore[arg-type]
    before = moe.bias.clone()
    moe(torch.randn(2, 9, 32).double(), ctx(tokens=9)).y.sum().backward()
    callback.on_train_batch_end(trainer, module, None, None, 0)  # a micro-batch without a step
    assert moe.bias.equal(before)
    trainer.optimizers[0].step()
    callback.on_train_batch_end(trainer, module, None, None, 0)
    assert not moe.bias.equal(before)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="top_k=3 is more than experts=2"):
        build(top_k=3, experts=2)
    with pytest.raises(ValueError, match="shared_gate=true needs shared experts"):
        build(shared=0, shared_gate=True)
