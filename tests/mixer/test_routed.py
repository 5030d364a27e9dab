"""Learned routing among mixers: blending, top-1, causality, decoding, load statistics."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from chimera.contract import CAUSAL, Context, Mixer, Out, Parts, Site
from chimera.mixer.attention import Attention
from chimera.mixer.ode import ODEAttention
from chimera.mixer.routed import Routed
from chimera.model.bidirectional import Bidirectional
from tests.kit import close, ctx, double, grads, parts, ragged, site

MEMBERS = {"attention": Attention, "mqa": partial(Attention, kv_heads=1), "ode": ODEAttention}
CHOICES = [(mode, scope) for mode in ("soft", "top1") for scope in ("sequence", "token")]


def build(causal: bool = False, **options: Any) -> Routed:
    options = {"members": MEMBERS, **options}
    made = double(lambda: Routed(site(causal=causal), parts(), **options))
    assert isinstance(made, Routed)
    nn.init.normal_(made.router.weight, std=3)
    return made


def rows(*shape: int) -> Tensor:
    return torch.randn(*shape, 32, dtype=torch.float64)


def plainly(m: Routed, x: Tensor) -> Tensor:
    """One sequence [t d], token by token: content, probabilities, outputs of the members."""
    outs = torch.stack([one(x[None], ctx(tokens=len(x))).y[0] for one in m.members.values()])
    y = []
    for t in range(len(x)):
        content = x[t]
        if m.scope == "sequence":
            content = x[: t + 1].mean(0) if m.causal else x.mean(0)
        p = torch.softmax(m.router.weight @ content, 0)
        weight = p if m.mode == "soft" else (p == p.max()).to(p.dtype)
        y.append(torch.einsum("m,md->d", weight, outs[:, t]))
    return torch.stack(y)


@pytest.mark.parametrize(("mode", "scope"), CHOICES)
@pytest.mark.parametrize("causal", [True, False])
def test_it_blends_or_chooses_by_content(causal: bool, mode: str, scope: str) -> None:
    m, x = build(causal, mode=mode, scope=scope), rows(5, 6)
    with torch.no_grad():
        y = m(x, ctx(tokens=6)).y
        for one, got in zip(x, y, strict=True):
            close(got, plainly(m, one))


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("mode", "scope"), CHOICES)
@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("causal", [True, False])
def test_padding_gives_the_unpadded_numbers(
    causal: bool, left: bool, mode: str, scope: str
) -> None:
    m, mask, x = build(causal, mode=mode, scope=scope), ragged([7, 1, 4], left=left), rows(3, 7)
    with torch.no_grad():
        out = m(x, ctx(mask))
        assert torch.isfinite(out.y).all()
        for i, n in enumerate((7, 1, 4)):
            close(out.y[i][mask[i]], m(x[i][mask[i]][None], ctx(tokens=n)).y[0])


@pytest.mark.parametrize(("mode", "scope"), CHOICES)
def test_a_decoder_does_not_look_ahead(mode: str, scope: str) -> None:
    m, x = build(True, mode=mode, scope=scope), rows(2, 9)
    other = torch.cat([x[:, :5], 10 * rows(2, 4)], 1)
    with torch.no_grad():
        close(m(x, ctx(tokens=9)).y[:, :5], m(other, ctx(tokens=9)).y[:, :5])


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("mode", "scope"), CHOICES)
@pytest.mark.parametrize("left", [True, False])
def test_prefill_and_decode_equal_the_full_pass(mode: str, scope: str, left: bool) -> None:
    m, mask, x = build(True, mode=mode, scope=scope), ragged([5, 3], left=left), rows(2, 5)
    more = rows(2, 3)
    with torch.no_grad():
        state, got = m(x, ctx(mask), m.init_state(2)).state, []
        for i in range(3):
            here = Context(mask.sum(1, keepdim=True) + i, None)
            out = m(more[:, i : i + 1], here, state)
            state = out.state
            got.append(out.y)
        for i, n in enumerate((5, 3)):
            whole = torch.cat([x[i][mask[i]], more[i]])[None]
            close(torch.cat(got, 1)[i], m(whole, ctx(tokens=n + 3)).y[0, n:])


@pytest.mark.parametrize(("mode", "scope"), CHOICES)
def test_the_router_learns(mode: str, scope: str) -> None:
    m = build(mode=mode, scope=scope)
    nn.init.normal_(m.router.weight, std=0.1)
    y = m(rows(4, 6), ctx(tokens=6)).y
    assert grads(y.square().sum(), m.router)[0].any()


def test_top1_by_sequence_runs_one_mixer_per_sequence() -> None:
    """Gradients equal those of running all mixers and selecting."""
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
    m, x = build(members=members, mode="top1"), rows(9, 5).requires_grad_()
    y = m(x, ctx(tokens=5)).y
    assert sum(seen.values()) == 9
    assert len(seen) > 1
    weight, of = torch.randn_like(y), [x, *m.parameters()]
    probs = torch.softmax(x.mean(1) @ m.router.weight.T, -1)
    gates = (probs == probs.amax(-1, keepdim=True)) * (1 + probs - probs.detach())
    every = torch.stack([one(x, ctx(tokens=5)).y for one in m.members.values()], 1)
    full = torch.einsum("bm,bmtd->btd", gates, every)
    close(y, full)
    close(grads((y * weight).sum(), of), grads((full * weight).sum(), of))


def test_idle_mixers_have_zero_gradients_and_not_none() -> None:
    m = build(mode="top1").train()
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
