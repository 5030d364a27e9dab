"""Mixers side by side in a layer."""

from __future__ import annotations

import torch

from chimera.contract import BOTH, CAUSAL
from chimera.contract_tests import zoo
from chimera.mixer.attention import Attention
from chimera.mixer.gla import GatedLinear
from chimera.mixer.parallel import Parallel
from chimera.mixer.retnet import Retention
from tests.kit import close, ctx, double, parts, site


def build(**members: type) -> Parallel:
    mixer = double(lambda: Parallel(site(), parts(), members=members))
    with torch.no_grad():
        mixer.norms.normal_()
    return mixer


def test_is_the_mean_of_normed_members() -> None:
    mixer, x = build(a=Attention, g=GatedLinear), torch.randn(2, 9, 32, dtype=torch.float64)
    want = torch.zeros_like(x)
    for name, scale in zip("ag", mixer.norms, strict=True):
        y = mixer.members[name](x, ctx(tokens=9)).y
        want = want + y / (y.square().mean(-1, keepdim=True) + 1e-6).sqrt() * scale / 2
    close(mixer(x, ctx(tokens=9)).y, want)


def test_capabilities_are_those_that_members_share() -> None:
    """A recurrence leaves positions to the attention beside it, and goes both ways in encoders."""
    both = build(a=Attention, g=GatedLinear)
    assert both.position_hooks == Attention.position_hooks
    assert both.directions == CAUSAL
    assert build(a=Attention, r=Retention).directions == BOTH
    assert build(g=GatedLinear).position_hooks == GatedLinear.position_hooks
    assert not both.documents
    assert build(a=Attention).documents


def test_members_share_the_position_of_the_model() -> None:
    model = zoo.model(causal=True, mixer="hymba", position="rope")
    assert model(zoo.tokens()).logits.isfinite().all()
