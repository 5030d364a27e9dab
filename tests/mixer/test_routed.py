"""Learned routing among mixers: blending, top-1, causality, decoding, load statistics."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from chimera.contract import CAUSAL, Context, Mixer, Out, Parts, Site
from chimera.mixer.attention import Attention
from chimera.mixer.ode import ODEAttention
from chimera.mixer.routed import Routed
from chimera.model.bidirectional import Bidirectional
from tests.kit import close, ctx, double, parts, ragged, site
from tests.mixer import forms

MEMBERS = {"attention": Attention, "mqa": partial(Attention, kv_heads=1), "ode": ODEAttention}
CHOICES = [(mode, scope) for mode in ("soft", "top1") for scope in ("sequence", "token")]


def build(causal: bool = True, **options: Any) -> Routed:
    options = {"members": MEMBERS, **options}
    made = double(lambda: Routed(site(causal=causal), parts(), **options))
    nn.init.normal_(made.router.weight, std=3)
    return made


def rows(*shape: int) -> Tensor:
    return torch.randn(*shape, 32, dtype=torch.float64)


def plainly(m: Routed, x: Tensor) -> Tensor:
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


class TestForms(forms.Forms):
    build, oracle = staticmethod(build), staticmethod(plainly)
    options: ClassVar = [{"mode": mode, "scope": scope} for mode, scope in CHOICES]
    encoders, constant, wide, tokens, tol = True, False, False, (17,), 1e-9

    def test_half_precision(self) -> None:
        """The weighted sum is in float32."""
        y = build().bfloat16()(rows(1, 9).bfloat16(), ctx(tokens=9)).y
        assert y.dtype == torch.float32


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
    build(causal=False, members=members, mode="top1")(rows(9, 5), ctx(tokens=5))
    assert sum(seen.values()) == 9
    assert len(seen) > 1


def test_idle_mixers_have_zero_gradients_and_not_none() -> None:
    m = build(causal=False, mode="top1").train()
    m(rows(1, 4), ctx(tokens=4)).y.sum().backward()
    assert all(p.grad is not None for p in m.parameters())


@pytest.mark.sampled(3)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("mode", "scope"), CHOICES)
def test_load_report(causal: bool, mode: str, scope: str) -> None:
    m = build(causal, mode=mode, scope=scope)
    x, here = rows(4, 6), ctx(ragged([6, 2, 3, 5], left=True))
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
