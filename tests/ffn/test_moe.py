"""Mixtures of experts against dense ones: capacity, balance, cost, padding, gradients.

Those with shared experts and loss-free balancing against loops over tokens, on several processes.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial
from itertools import cycle
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from chimera.callback.part.loads import LoadBalance
from chimera.contract import FFN, Context, Out
from chimera.ffn.geglu import GEGLU
from chimera.ffn.mlp import MLP
from chimera.ffn.moe import MoE
from chimera.ffn.moe_shared import SharedMoE
from chimera.ffn.relu2 import ReLU2
from chimera.ffn.relu2_glu import ReLU2GLU
from chimera.ffn.swiglu import SwiGLU
from chimera.ops.dropout import dropout
from chimera.ops.routing import balance
from chimera.quant.shared.layers import Linear
from tests.kit import close, ctx, double, grads, parts, ragged, site
from tests.ops.processes import together
from tests.quant.test_layers import NAMES
from tests.quant.test_layers import make as quantiser
from tests.reference import moe as reference


@pytest.fixture(autouse=True, params=[(), ("cpu",)], ids=["groups", "seats"])
def _both_forms(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each expert runs on its own rows, or on as many as its capacity, as on a GPU."""
    monkeypatch.setattr("chimera.ops.together.DEVICES", request.param)


def build(causal: bool = False, **options: Any) -> MoE:
    options = {"expert": partial(MLP, expand=2), **options}
    made = double(lambda: MoE(site(causal=causal), parts(), **options))
    nn.init.normal_(made.router.weight)  # certain enough that experts overflow
    return made


def rows(*shape: int) -> Tensor:
    return torch.randn(*shape, 32, dtype=torch.float64)


def dense(moe: MoE, x: Tensor) -> Tensor:
    """Run every expert on every token, weighted by the renormalised top-k gates."""
    probs = torch.softmax(x @ moe.router.weight.T, -1)
    gates = probs * (probs >= probs.topk(moe.top_k).values[..., -1:])
    gates = gates / gates.sum(-1, keepdim=True)
    outs = torch.stack([e(x, ctx(tokens=x.shape[1])).y for e in moe.experts], -1)
    return (outs * gates[..., None, :]).sum(-1)


@pytest.mark.parametrize(("experts", "top_k"), [(4, 2), (8, 2), (4, 3), (2, 2)])
def test_sparse_equals_dense(experts: int, top_k: int) -> None:
    moe, x = build(experts=experts, top_k=top_k), rows(3, 11).requires_grad_()
    sparse, full = moe(x, ctx(tokens=11)).y, dense(moe, x)
    close(sparse, full)
    weight = torch.randn_like(full)
    of = [x, *moe.parameters()]
    close(grads((sparse * weight).sum(), of), grads((full * weight).sum(), of))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("of", ["tokens", "choices"])
@pytest.mark.parametrize("factor", [None, 0.5, 1.25, 4.0])
def test_capacity_is_that_of_the_naive_form(causal: bool, of: str, factor: float | None) -> None:
    moe = build(causal, capacity_factor=factor, capacity_of=of).train()
    x = rows(2, 13)
    out = moe(x, ctx(tokens=13))
    experts = [lambda r, e=e: e(r[None, None], ctx(tokens=1)).y[0, 0] for e in moe.experts]
    per_token = factor and factor * (2 if of == "choices" else 1)
    y, served = reference.moe(
        x.flatten(0, 1), moe.router.weight, experts, 2, per_token, in_order=causal
    )
    close(out.y.flatten(0, 1), y)
    close(float(out.stats["drop_rate"]), pytest.approx(1 - sum(served) / 52, abs=1e-6))


class Own(MLP):
    """Expert with dropout, a loss and numbers of its own."""

    def __init__(self, *given: Any, **settings: Any) -> None:
        super().__init__(*given, **settings)
        self.register_buffer("signs", torch.randn(32).sign().double(), persistent=False)

    def forward(self, x: Tensor, ctx: Context) -> Out:
        y = super().forward(x * self.signs, ctx).y
        real = y if ctx.mask is None else y[ctx.mask]
        loss = real.square().sum().sqrt() / max(len(real.flatten(0, -2)), 1)
        return Out(dropout(y, 0.3, self.training, ctx.draws, 1), aux={"own": loss})


ALL = (MLP, GEGLU, SwiGLU, ReLU2, ReLU2GLU)
#: Of these the layers keep numbers beside weights: each expert runs by itself.
APART = {"hbit", "bitnet_a48", "bitnet_v2", "int4_act"}


@pytest.mark.parametrize(
    ("quant", "kind", "causal"),
    [("none", MLP, True), *((name, kind, False) for name, kind in zip(NAMES, cycle(ALL)))],
)
def test_one_product_of_all_experts_changes_no_number(
    quant: str, kind: Any, causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With padding, biases and dropped choices; the outputs and all gradients."""
    linear = quantiser(quant).linear
    expert = lambda site, _: kind(site, parts(linear=linear), expand=2, bias=True)  # noqa: E731
    moe = copy.deepcopy(build(causal, capacity_factor=0.7, expert=expert)).train()
    seen: list[int] = []
    stacked = Linear.stacked
    monkeypatch.setattr(
        Linear, "stacked", lambda *given: (seen.append(len(given[2])), stacked(*given))[1]
    )
    mask = ragged([9, 4, 7], left=False)
    x = rows(3, 9).requires_grad_()
    given = replace(ctx(mask), draws=torch.arange(27).view(3, 9))

    def numbers(*devices: str) -> list[Tensor]:
        monkeypatch.setattr("chimera.ops.together.DEVICES", devices)
        out = moe(x, given)
        assert float(out.stats["drop_rate"]) > 0
        loss = out.y.square().sum() + out.aux["balance"]
        own = [out.y, *out.aux.values(), *out.stats.values()]
        return own + grads(loss, [x, *moe.parameters()])

    close(numbers("cpu"), numbers(), 1e-9)
    assert seen == ([] if quant in APART else [4, 4])
    moe.experts[1] = copy.deepcopy(moe.experts[1])
    nn.init.normal_(moe.experts[1].up.weight)
    close(numbers("cpu"), numbers(), 1e-9)  # the new expert counts
    assert seen == ([] if quant in APART else [4, 4] * 2)


def other(moe: MoE) -> None:
    moe.experts[1] = Own(site(), parts()).double()


def hook(moe: MoE) -> None:
    moe.experts[2].down.register_full_backward_hook(lambda *_: None)


def adapt(moe: MoE) -> None:
    moe.experts[0].up = nn.Linear(32, 128).double()


def widen(moe: MoE) -> None:
    moe.experts[1] = MLP(site(), parts(), expand=3).double()


def tanh(moe: MoE) -> None:
    moe.experts[3].approximate = "tanh"


@pytest.mark.parametrize(
    ("kind", "change"),
    [(Own, None), (MLP, other), (MLP, hook), (MLP, adapt), (MLP, widen), (GEGLU, tanh)],
)
def test_experts_that_differ_run_by_themselves(
    kind: type[MLP], change: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    moe = build(capacity_factor=0.7, expert=lambda s, p: kind(s, p)).train()
    if change is not None:
        change(moe)
    monkeypatch.setattr(Linear, "stacked", lambda *_: pytest.fail("computed at once"))
    x = rows(3, 9)
    given = replace(ctx(ragged([9, 4, 7], left=False)), draws=torch.arange(27).view(3, 9))
    found = []
    for devices in ((), ("cpu",)):
        monkeypatch.setattr("chimera.ops.together.DEVICES", devices)
        out = moe(x, given)
        found.append([out.y, *out.aux.values()])
    close(found[1], found[0], 1e-7)  # shares are float32


def even(choices: int, **options: Any) -> Out:
    """Tokens that choose each pair (i, i + 1) of four experts equally often, in training mode."""
    moe = build(**options).train()
    with torch.no_grad():
        moe.router.weight.zero_()[:, :4] = 4 * torch.eye(4)
    x = torch.zeros(1, choices, 32, dtype=torch.float64)
    i = torch.arange(choices)
    x[0, i, i % 4], x[0, i, (i + 1) % 4] = 2.0, 1.0
    return moe(x, ctx(tokens=choices))


def test_the_papers_capacity_drops_even_routing_and_choices_does_not() -> None:
    """Eq. 45 counts tokens, but each token has two choices (SPEC E10)."""
    assert float(even(64, capacity_of="tokens").stats["drop_rate"]) == 0.375
    assert float(even(64).stats["drop_rate"]) == 0.0


def test_nothing_is_dropped_in_evaluation() -> None:
    """Otherwise a result would depend on other sequences of the batch."""
    moe, x = build(capacity_factor=0.3), rows(4, 9)
    whole = moe(x, ctx(tokens=9))
    assert float(whole.stats["drop_rate"]) == 0
    close(whole.y[:1], moe(x[:1], ctx(tokens=9)).y)
    assert float(moe.train()(x, ctx(tokens=9)).stats["drop_rate"]) > 0


def test_balance_is_one_for_even_routing_and_n_for_collapse() -> None:
    """SPEC E2: [1, N]; TITAN Prop. 6.1 has [1/N, 1]."""
    sure = 60 * torch.eye(4, dtype=torch.float64)
    spread, collapsed = torch.arange(4).repeat(5), torch.zeros(20, dtype=torch.long)
    assert float(balance(sure[spread].softmax(-1), spread, None)) == pytest.approx(1)
    assert float(balance(sure[collapsed].softmax(-1), collapsed, None)) == pytest.approx(4)
    undecided = torch.full((20, 4), 0.25, dtype=torch.float64)
    assert float(balance(undecided, undecided.argmax(-1), None)) == pytest.approx(1)


def test_descending_the_balance_loss_spreads_the_load() -> None:
    moe, x = build(), rows(4, 16) + 1
    with torch.no_grad():
        moe.router.weight.mul_(0.1)[0] += 0.2  # nearly all tokens choose expert 0
    start = moe(x, ctx(tokens=16))
    optimizer = torch.optim.Adam(moe.router.parameters(), lr=0.01)
    for _ in range(60):
        optimizer.zero_grad()
        moe(x, ctx(tokens=16)).aux["balance"].backward()
        optimizer.step()
    end = moe(x, ctx(tokens=16))
    assert end.aux["balance"].item() < 1.2 < 3 < start.aux["balance"].item()
    loads = torch.stack([end.stats[f"expert_load_{i}"] for i in range(4)])
    assert float(loads.sum()) == pytest.approx(1)


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_padding_is_neither_routed_nor_counted(left: bool, training: bool) -> None:
    moe = build(causal=True, capacity_factor=0.9).train(training)
    mask = ragged([9, 4, 7], left=left)
    x = rows(3, 9)
    out = moe(x, ctx(mask))
    packed = moe(x[mask][None], ctx(tokens=20))
    close(out.y[mask], packed.y[0])
    assert not out.y[~mask].any()
    close(out.aux, packed.aux)
    close(list(out.stats.values()), list(packed.stats.values()))


def test_a_batch_of_padding_is_zero() -> None:
    moe, x = build().train(), rows(2, 3).requires_grad_()
    out = moe(x, ctx(torch.zeros(2, 3, dtype=torch.bool)))
    assert not out.y.any()
    assert all(g is not None for g in torch.autograd.grad(out.y.sum(), [x]))


class Counting(FFN):
    """Expert that records its number of rows."""

    def __init__(self, seen: list[int]) -> None:
        super().__init__()
        self.seen = seen

    def forward(self, x: Tensor, ctx: Context) -> Out:
        self.seen.append(x.shape[0] * x.shape[1])
        assert ctx.pos.shape == x.shape[:2]
        return Out(x)


class Reporting(FFN):
    """Expert with an auxiliary loss."""

    def forward(self, x: Tensor, ctx: Context) -> Out:
        return Out(x, aux={"inner": torch.tensor(3.0)})


def test_an_experts_own_loss_counts_by_its_share_of_the_rows() -> None:
    moe = build(expert=lambda site, parts: Reporting())
    aux = moe(rows(2, 10), ctx(tokens=10)).aux
    assert float(aux["inner"]) == pytest.approx(3.0)  # shares of all experts sum to 1
    assert set(aux) == {"inner", "balance"}


@pytest.mark.parametrize("top_k", [1, 2, 3])
def test_cost_grows_with_k_and_not_with_experts(top_k: int) -> None:
    for experts in (4, 16):
        seen: list[int] = []
        moe = build(expert=lambda s, p, n=seen: Counting(n), experts=experts, top_k=top_k)
        y = moe(rows(2, 10), ctx(tokens=10)).y
        assert sum(seen) == 20 * top_k
        assert y.shape == (2, 10, 32)


def test_idle_experts_have_zero_gradients_and_not_none() -> None:
    moe = build().train()
    moe(rows(1, 1), ctx(tokens=1)).y.sum().backward()
    found = [p.grad for p in moe.experts.parameters()]
    assert all(g is not None for g in found)
    assert not all(g.any() for g in found if g is not None)


def test_one_expert_per_token_still_teaches_the_router() -> None:
    moe = build(top_k=1)
    assert grads(moe(rows(2, 6), ctx(tokens=6)).y.square().sum(), moe.router)[0].any()


def test_the_router_stays_in_float32_under_autocast() -> None:
    moe, x = build().float(), rows(2, 9).float()
    exact = moe(x, ctx(tokens=9))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = moe(x, ctx(tokens=9))
    close(exact.aux, rounded.aux, 0.0)
    close(list(exact.stats.values()), list(rounded.stats.values()), 0.0)
    assert rounded.y.dtype == torch.float32  # the sum over experts
    assert not torch.equal(rounded.y, exact.y)  # their products


def shared(**options: Any) -> SharedMoE:
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
def test_shared_experts_are_their_equations(options: dict[str, Any]) -> None:
    moe = shared(**options)
    x = torch.randn(2, 7, 32).double().requires_grad_()
    (want, loads), out = by_loops(moe, x), moe(x, ctx(tokens=7))
    close(out.y, want, 1e-10)
    weight, over = torch.randn_like(want), [x, *moe.parameters()]
    close(grads((out.y * weight).sum(), over), grads((want * weight).sum(), over), 1e-10)
    got = torch.stack([out.stats[f"expert_load_{i}"] for i in range(len(moe.experts))])
    close(got.double() * loads.sum(), loads, 1e-5)
    assert not moe.loads.any()  # counted in training only


def test_the_bias_moves_against_the_loads_and_evens_them_out() -> None:
    moe = shared(rate=0.02).train()
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


def test_padding_is_in_no_load_and_recomputation_counts_once() -> None:
    moe, mask = shared().train(), ragged([3, 8], left=False)
    x = torch.randn(2, 8, 32).double().requires_grad_()
    y = checkpoint(lambda z: moe(z, ctx(mask)).y, x, use_reentrant=False)
    y.square().sum().backward()
    assert moe.loads.sum() == 11 * 2


def test_processes_count_together() -> None:
    x = torch.randn(4, 6, 32).double()
    whole = shared().train()
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
    moe = shared().train()
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


def test_shared_experts_that_do_not_fit_are_refused() -> None:
    for make in (build, shared):
        with pytest.raises(ValueError, match="top_k=3 is more than experts=2"):
            make(top_k=3, experts=2)
    with pytest.raises(ValueError, match="shared_gate=true needs shared experts"):
        shared(shared=0, shared_gate=True)
