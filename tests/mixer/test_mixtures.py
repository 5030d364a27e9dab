"""Several mixers in a model: cycled over layers (SPEC M16), side by side, and routed among."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from chimera.contract import BOTH, CAUSAL, Context, Mixer, Out, Parts, Site
from chimera.contract_tests import zoo
from chimera.mixer.attention import Attention
from chimera.mixer.gla import GatedLinear
from chimera.mixer.linear import LinearAttention
from chimera.mixer.ode import ODEAttention
from chimera.mixer.parallel import Parallel
from chimera.mixer.pattern import pattern
from chimera.mixer.retnet import Retention
from chimera.mixer.routed import Routed
from chimera.model.bidirectional import Bidirectional
from tests.kit import close, ctx, double, parts, ragged, randn, site
from tests.mixer import forms
from tests.mixer.forms import rms

CYCLED = {"a": partial(Attention, kv_heads=1), "r": Retention, "l": LinearAttention}


def test_the_member_itself_stands_at_its_layer() -> None:
    cycle = ["r", "a", "r", "l"]
    wheres = [site(layer=i, depth=6) for i in range(6)]
    made = [pattern(where, parts(), cycle=cycle, members=CYCLED) for where in wheres]
    kinds = [Retention, Attention, Retention, LinearAttention]
    assert [type(m) for m in made] == [*kinds, *kinds[:2]]
    assert made[1].heads.g == 1


def test_a_cycle_that_names_no_member_is_refused_with_the_members() -> None:
    with pytest.raises(ValueError, match="cycle names x, y; the members are a, r, l"):
        pattern(site(), parts(), cycle=["a", "x", "y", "x"], members=CYCLED)
    with pytest.raises(ValueError, match=r"mixer\.cycle is empty: name at least one mixer"):
        pattern(site(), parts(), cycle=[], members=CYCLED)


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("pattern", ["retnet", "attention"]),
        ("titan6", ["retnet", "attention", "retnet", "mamba", "attention", "ode"]),
        ("interleaved", ["attention", "attention"]),
        ("best_combo", ["attention", "attention"]),
        ("kimi_linear", ["kda", "kda", "kda", "attention"]),
        ("mamba2_hybrid", ["mamba2"] * 4 + ["attention"] + ["mamba2"] * 3),
        ("modernbert", ["attention"] * 3),
        ("gemma3", ["attention"] * 6),
        ("hymba", ["parallel"]),
    ],
)
def test_the_shipped_patterns_build(name: str, kinds: list[str]) -> None:
    make = zoo.choices(mixer=name).mixer
    where = [site(layer=i, depth=len(kinds)) for i in range(len(kinds))]
    assert [make(here, parts()).component for here in where] == kinds


@pytest.mark.parametrize(
    ("name", "windows"),
    [("modernbert", [None, 65, 65] * 2), ("gemma3", [1024] * 5 + [None])],
)
def test_windows_stand_between_global_layers(name: str, windows: list[int | None]) -> None:
    make = zoo.choices(mixer=name).mixer
    layers = [make(site(layer=i, depth=6), parts()) for i in range(6)]
    assert [getattr(layer, "window", None) for layer in layers] == windows


def test_best_combo_is_blocks_throughout() -> None:
    make = zoo.choices(mixer="best_combo").mixer
    plain, convolved = (make(site(layer=i, depth=2), parts()) for i in range(2))
    assert type(convolved.inner) is type(plain)
    assert type(plain).__name__ == "SparseBlock"


def beside(**members: type) -> Parallel:
    mixer = double(lambda: Parallel(site(), parts(), members=members))
    with torch.no_grad():
        mixer.norms.normal_()
    return mixer


def test_is_the_mean_of_normed_members() -> None:
    mixer, x = beside(a=Attention, g=GatedLinear), torch.randn(2, 9, 32, dtype=torch.float64)
    want = torch.zeros_like(x)
    for name, scale in zip("ag", mixer.norms, strict=True):
        y = mixer.members[name](x, ctx(tokens=9)).y
        want = want + rms(y) * scale / 2
    close(mixer(x, ctx(tokens=9)).y, want)


def test_capabilities_are_those_that_members_share() -> None:
    """A recurrence leaves positions to the attention beside it, and goes both ways in encoders."""
    both = beside(a=Attention, g=GatedLinear)
    assert both.position_hooks == Attention.position_hooks
    assert both.directions == CAUSAL
    assert beside(a=Attention, r=Retention).directions == BOTH
    assert beside(g=GatedLinear).position_hooks == GatedLinear.position_hooks
    assert not both.documents
    assert beside(a=Attention).documents


def test_members_share_the_position_of_the_model() -> None:
    model = zoo.model(causal=True, mixer="hymba", position="rope")
    assert model(zoo.tokens()).logits.isfinite().all()


MEMBERS = {"attention": Attention, "mqa": partial(Attention, kv_heads=1), "ode": ODEAttention}
CHOICES = [(mode, scope) for mode in ("soft", "top1") for scope in ("sequence", "token")]


class TestRouted(forms.Forms):
    mixer, given = Routed, {"members": MEMBERS}
    options: ClassVar = [{"mode": mode, "scope": scope} for mode, scope in CHOICES]
    encoders, constant, wide, tokens, tol = True, False, False, (17,), 1e-9

    @staticmethod
    def stir(m: Any) -> None:
        m.router.weight.normal_(std=3)

    @staticmethod
    def oracle(m: Any, x: Tensor) -> Tensor:
        """Token by token: content, probabilities, outputs of the members."""
        outs = torch.stack([one(x, ctx(tokens=x.shape[1])).y for one in m.members.values()], 2)
        y = []
        for t in range(x.shape[1]):
            content = x[:, t]
            if m.scope == "sequence":
                content = x[:, : t + 1].mean(1) if m.causal else x.mean(1)
            weight = p = torch.softmax(content @ m.router.weight.T, -1)
            if m.mode == "top1":  # the router learns by the gradient of p
                weight = (p == p.amax(-1, keepdim=True)) * (1 + p - p.detach())
            y.append(torch.einsum("bm,bmd->bd", weight, outs[:, t]))
        return torch.stack(y, 1)

    def test_half_precision(self) -> None:
        """The weighted sum is in float32."""
        y = build().bfloat16()(randn(1, 9, 32).bfloat16(), ctx(tokens=9)).y
        assert y.dtype == torch.float32


build = TestRouted.build


def test_top1_by_sequence_runs_one_mixer_per_sequence() -> None:
    seen: dict[str, int] = {}

    class Noted(Attention):
        name: str

        def forward(self, x: Tensor, ctx: Context, state: Any = None) -> Out:
            seen[self.name] = seen.get(self.name, 0) + len(x)
            return super().forward(x, ctx, state)

    def noted(site: Site, parts: Parts, name: str) -> Noted:
        made = Noted(site, parts)
        made.name = name
        return made

    members = {name: partial(noted, name=name) for name in "abcd"}
    build(causal=False, members=members, mode="top1")(randn(9, 5, 32), ctx(tokens=5))
    assert sum(seen.values()) == 9
    assert len(seen) > 1


def test_idle_mixers_have_zero_gradients_and_not_none() -> None:
    m = build(causal=False, mode="top1").train()
    m(randn(1, 4, 32), ctx(tokens=4)).y.sum().backward()
    assert all(p.grad is not None for p in m.parameters())


@pytest.mark.sampled(3)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("mode", "scope"), CHOICES)
def test_load_report(causal: bool, mode: str, scope: str) -> None:
    m = build(causal, mode=mode, scope=scope)
    x, here = randn(4, 6, 32), ctx(ragged([6, 2, 3, 5], left=True))
    out = m(x, here)
    shares = [out.stats[f"mixer_share_{name}"].item() for name in MEMBERS]
    assert sum(shares) == pytest.approx(1)
    assert not any(value.requires_grad for value in out.stats.values())
    if mode == "soft":
        close(out.aux["ode"], m.members["ode"](x, here).aux["ode"])
    assert 0 < out.aux["balance_mixer"].item() <= 3


def test_it_can_do_what_all_of_its_members_can() -> None:
    class Deaf(Attention):
        directions = CAUSAL
        position_hooks = frozenset({"embed"})

    assert build().position_hooks == {"embed", "rotate", "bias"} < Attention.position_hooks
    mixed = build(True, members={"attention": Attention, "deaf": Deaf})
    assert mixed.directions == CAUSAL
    assert mixed.position_hooks == {"embed"}
    # An encoder wraps such a mixture in `Bidirectional`, as any causal mixer.
    members: dict[str, Any] = {"attention": Attention, "deaf": Deaf}
    both = Bidirectional(site(causal=False), parts(), partial(Routed, members=members))
    assert isinstance(both.ahead, Mixer)
    assert both(torch.randn(2, 5, 32), ctx(tokens=5)).y.shape == (2, 5, 32)
