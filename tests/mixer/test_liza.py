"""LiZAttention: linear branch against the paper's equations, whole mixer against attention."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chimera.contract import Position
from chimera.mixer.attention import Attention
from chimera.mixer.liza import LiZAttention
from chimera.ops.liza import LinearBranch
from tests.kit import close, ctx, double, parts, ragged, site
from tests.mixer import forms
from tests.mixer.forms import join, rms, split
from tests.reference.recurrences import linear_branch, virtual_tokens

PHI = {"none": lambda h: h, "gelu": F.gelu, "tanh": torch.tanh}
TRICKS = [("none", 1), ("derivative", 2), ("derivative", 3), ("rotary", 2), ("both", 2)]
#: Every trick, gate and nonlinearity at least once; chunks that do not divide the length.
BRANCHES: list[dict[str, Any]] = [
    {"trick": trick, "order": order, "gate": gate, "nonlinearity": phi, "chunk": 7}
    for (trick, order), (gate, phi) in zip(
        TRICKS,
        itertools.cycle([("k", "none"), ("v", "gelu"), ("kv", "tanh")]),
        strict=False,
    )
]
BRANCHES += [
    {**BRANCHES[1], "gate_input": "projected", "pool": 3},
    {**BRANCHES[4], "gate": "kv", "gate_input": "projected", "pool": 1},
    {**BRANCHES[2], "pool": 5, "mag": "cross_gate", "mag_learn": "head"},
    {**BRANCHES[1], "pool": "all", "beta": "scalar"},
    {**BRANCHES[4], "gate": "kv", "gate_input": "projected", "pool": "all"},
]
#: Weight of the final norm of the branch.
ONES = torch.ones(4, dtype=torch.float64)


def branch(**options: Any) -> LinearBranch:
    return LinearBranch(head_dim=4, **options)


class Turned(Position):
    """Position that rotates and biases, to test which branch uses it."""

    provides = frozenset({"rotate", "bias"})

    def rotate(self, q: Tensor, k: Tensor, pos: Tensor) -> tuple[Tensor, Tensor]:
        angle = pos[:, None, :, None].to(q.dtype)
        return q * angle.cos(), k * angle.cos()

    def bias(self, pos_q: Tensor, pos_k: Tensor) -> Tensor:
        apart = (pos_q[:, None, :, None] - pos_k[:, None, None, :]).abs()
        return -apart * torch.arange(1, 5, dtype=torch.float64)[:, None, None]


class TestForms(forms.Forms):
    mixer = LiZAttention
    options: ClassVar = [{"kv_heads": 2, "mag_weight": 0.3, **options} for options in BRANCHES]
    encoders, constant, wide, tokens, tol = True, False, False, (24,), 1e-9

    @staticmethod
    def stir(mixer: LiZAttention) -> None:
        if mixer.mag_shift is not None:
            nn.init.normal_(mixer.mag_shift)

    @staticmethod
    def oracle(m: LiZAttention, x: Tensor) -> Tensor:
        """Both branches by the paper's equations, and eq. 7 or 8."""
        q, k, v = (split(p(x), p.out_features // 8) for p in (m.q_proj, m.k_proj, m.v_proj))
        k, v = (y.repeat_interleave(4 // y.shape[1], 1) for y in (k, v))
        pos = torch.arange(x.shape[1])
        apart = pos[:, None] - pos
        hidden = (apart < 0) & m.causal | (apart >= (m.window or len(pos)))
        turned, keys = m.position.rotate(q, k, pos[None])  # of the softmax branch only
        scores = (turned @ keys.mT / 8**0.5).masked_fill(hidden, -torch.inf)
        if "bias" in m.position.provides:
            scores = scores + m.position.bias(pos[None], pos[None])
        base = scores.softmax(-1) @ v
        said = dataclasses.asdict(m.branch)
        del said["head_dim"]
        said["phi"] = PHI[said.pop("nonlinearity")]
        lin, _ = linear_branch(q, k, v, **said)
        if not m.causal:
            lin = lin + linear_branch(*(y.flip(2) for y in (q, k, v)), **said)[0].flip(2)
        lin = rms(lin) * m.linear.norm.weight
        weight = m.mag_weight
        if m.mag_shift is not None:  # learned of each head
            weight = (weight.logit() + m.mag_shift).sigmoid()
        base, lin = (1 - weight) * base, weight * lin
        return m.o_proj(join(base + lin + base * lin if m.cross else base + lin))


mixer = TestForms.build


class TestPositions(TestForms):
    options: ClassVar = [{"position": Turned}]


class TestBounded(TestForms):
    options: ClassVar = [{"max_cache": 9, "nonlinearity": "gelu", "chunk": 7, "order": 3}]
    encoders, constant = False, True


def test_the_spread_of_beta_is_told_and_wider_without_the_norm() -> None:
    """The paper's β is nearly constant; projected keys spread it. Padding does not count."""
    spreads = {}
    for name in ("normalised", "projected"):
        one = mixer(gate_input=name).train()
        x, mask = 6 * torch.randn(2, 30, 32, dtype=torch.float64), ragged((30, 12), left=False)
        stats = one(x, ctx(mask)).stats
        spreads[name] = float(stats["beta_std"])
        q, k, v = one.project(x[1:, :12])
        alone: dict[str, Tensor] = {}
        both: dict[str, Tensor] = {}
        one.branch(q, k, v, one.linear.norm.weight, stats=alone)
        padded = [F.pad(i, (0, 0, 0, 3)) for i in (q, k, v)]
        only = torch.arange(15)[None] < 12
        one.branch(*padded, one.linear.norm.weight, only, stats=both)
        close(list(both.values()), list(alone.values()))
        assert not one.eval()(x, ctx(mask)).stats
    assert 0 < spreads["normalised"] < 0.1 < spreads["projected"]


@pytest.mark.parametrize(("causal", "bound"), [(True, None), (True, 64), (False, None)])
@pytest.mark.parametrize("mag", ["additive", "cross_gate"])
def test_weight_0_is_attention(causal: bool, mag: str, bound: int | None) -> None:
    one = mixer(causal=causal, mag=mag, mag_weight=0.0, max_cache=bound, position=Turned)
    plain = double(lambda: Attention(site(causal=causal), parts(position=Turned)))
    plain.load_state_dict(one.state_dict(), strict=False)
    x = torch.randn(2, 40, 32, dtype=torch.float64)
    got, want = one(x, ctx(tokens=40)).y, plain(x, ctx(tokens=40)).y
    close(got, want, 1e-12 if bound else 0.0)  # bit for bit, if both use the same kernel


def test_a_learned_weight_begins_at_the_given_one_and_keeps_0_and_1() -> None:
    one = LiZAttention(site(), parts(), mag_weight=0.01, mag_learn="head")
    plain = LiZAttention(site(), parts(), mag_weight=0.01)
    plain.load_state_dict(one.state_dict(), strict=False)
    x = torch.randn(2, 9, 32)
    y = one(x, ctx(tokens=9)).y
    close(y, plain(x, ctx(tokens=9)).y, 1e-6)
    y.square().sum().backward()
    assert one.mag_shift.grad.flatten().all()
    nn.init.normal_(one.mag_shift)
    for weight in (0.0, 1.0):
        one.set_mag_weight(weight)
        plain.set_mag_weight(weight)
        close(one(x, ctx(tokens=9)).y, plain(x, ctx(tokens=9)).y, 1e-6)


@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_one_branch_alone_is_the_mixture_at_its_end(weight: float) -> None:
    """In evaluation the other one is not computed; training computes both."""
    one = mixer(mag_weight=weight, max_cache=9)
    x = torch.randn(2, 30, 32, dtype=torch.float64)
    close(one.eval()(x, ctx(tokens=30)).y, one.train()(x, ctx(tokens=30)).y, 1e-12)
    state = one.init_state(2)
    assert (state.cache.k.shape[2] == 0) == (weight == 1)
    steps = one.eval()(x, ctx(tokens=30), state)
    assert (steps.state.cache.k.shape[2] == 0) == (weight == 1)
    assert bool(steps.state.linear.memory.any()) == (weight == 1)


def test_e12_a_step_with_one_beta_is_a_contraction() -> None:
    """I − k(β⊙k)ᵀ: its spectral norm is above 1 for a β per channel, and at most 1 for one β."""
    norms = {None: 0.0, "scalar": 0.0}
    for beta in norms:
        one = branch(order=1, trick="none", gate_input="projected", pool=1, beta=beta)
        for _ in range(50):
            k, v = (3 * torch.randn(1, 1, 1, 4, dtype=torch.float64) for _ in "kv")
            first = torch.eye(4, dtype=torch.float64)[None, None]
            state = one.init_state(1, 1, k)._replace(memory=first)
            moved = one(k, k, v, ONES, state=state)[1].memory
            moved -= one(k, k, v, ONES, state=state._replace(memory=0 * first))[1].memory
            norms[beta] = max(norms[beta], float(torch.linalg.matrix_norm(moved, 2)))
    assert norms["scalar"] <= 1 + 1e-12
    assert norms[None] > 1.01


def test_the_weight_is_saved_and_checked() -> None:
    one, other = mixer(mag_weight=0.1), mixer()
    one.set_mag_weight(0.25)
    other.load_state_dict(one.state_dict())
    assert other.mag_weight == 0.25
    assert "mag_weight" not in dict(one.named_parameters())
    with pytest.raises(ValueError, match=r"not in \[0, 1\]"):
        one.set_mag_weight(1.5)


def test_e6_the_derivative_is_summed_over_time() -> None:
    """m = 1: (x_t − x_t−1)/2, m = 2: (x_t − 2 x_t−1 + x_t−2)/4, with zeros before the start."""
    x = torch.randn(1, 1, 9, 4, dtype=torch.float64)
    padded = F.pad(x, (0, 0, 2, 0))
    got = branch(order=3, trick="derivative").virtual(padded)
    close(got[..., 0, :], x)
    close(got[:, :, 1:, 1], (x[:, :, 1:] - x[:, :, :-1]) / 2)
    close(got[:, :, 2:, 2], (x[:, :, 2:] - 2 * x[:, :, 1:-1] + x[:, :, :-2]) / 4)
    close(got[:, :, 0], torch.stack([x[:, :, 0] / 2**m for m in range(3)], 2))
    close(got[:, :, 5], virtual_tokens(x, 5, 3, "derivative"))
    still = branch(order=2, trick="derivative").virtual(x[:, :, :1].expand(-1, -1, 9, -1))
    assert not still[..., 1, :].any()  # terms of a single token would not cancel


def test_an_encoder_has_no_state() -> None:
    one, x = branch(), torch.randn(2, 2, 5, 4)
    with pytest.raises(ValueError, match="no state"):
        one(x, x, x, ONES, state=one.init_state(2, 2, x), causal=False)


@pytest.mark.parametrize("gate", ["k", "v", "kv"])
def test_the_memory_stays_bounded(gate: str) -> None:
    """β per channel makes the transition oblique; with normalised keys, the state does not grow."""
    one = branch(order=2, trick="both", gate=gate)
    x = [10 * torch.randn(2, 2, 4000, 4, dtype=torch.float64) for _ in range(3)]
    x[1] = x[1][:, :, :8].repeat(1, 1, 500, 1)  # few keys, repeated
    _, state = one(*x, ONES, state=one.init_state(2, 2, x[0]))
    assert state.memory.norm(dim=(-2, -1)).max() < 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"trick": "none", "order": 2}, "order=2 needs virtual tokens"),
        ({"heads": 32, "trick": "rotary"}, "rotates pairs of channels"),
        ({"causal": False, "max_cache": 8}, "an encoder has no cache"),
        ({"heads": 3}, "heads=3 does not divide"),
        ({"kv_heads": 3}, "kv_heads=3 does not divide"),
    ],
)
def test_what_cannot_be_is_said(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        mixer(**options)


def test_the_branch_has_the_defaults_of_the_mixer() -> None:
    mixer = inspect.signature(LiZAttention).parameters
    for field in dataclasses.fields(LinearBranch):
        if field.name != "head_dim":
            assert field.default == mixer[field.name].default, field.name
