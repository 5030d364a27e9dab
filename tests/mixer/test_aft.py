"""Attention-free transformer against a reference with one query at a time (SPEC M15)."""

from __future__ import annotations

import re
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from chimera.mixer.aft import AFT
from chimera.ops import aft
from tests.kit import NoLayer, close, ctx, grads, normal, parts, ragged, site
from tests.mixer import forms
from tests.reference.attention import aft as definition


class TestForms(forms.Forms):
    mixer, given = AFT, {"rank": 6, "window": 5}
    options: ClassVar = [{"form": "local"}, {"form": "simple"}]
    encoders, wide = True, False
    tokens, size, tol = (6, 60), 1.0, 1e-9

    @staticmethod
    def stir(m: Any) -> None:
        """With small initial a and b, errors in w would not show."""
        for p in m.parameters(recurse=False):
            p.normal_()

    @staticmethod
    def oracle(m: Any, x: Tensor) -> Tensor:
        """The definition of each text, with the mixer's projections."""
        t = x.shape[1]
        w = x.new_zeros(t, t) if m.form == "simple" else m.a[:t] @ m.b[:t].T
        if m.form == "local":
            at = torch.arange(t)
            w = w * ((at[:, None] - at).abs() < m.window)
        pairs = zip(m.k_proj(x), m.v_proj(x), strict=True)
        y = torch.stack([definition(k, v, w, causal=m.causal) for k, v in pairs])
        return m.o_proj(m.q_proj(x).sigmoid() * y)


class TestFull(TestForms):
    options: ClassVar = [{"form": "full"}]
    constant = False


@pytest.mark.parametrize("form", ["full", "local", "simple"])
def test_a_huge_key_leaves_the_past_exact(form: str) -> None:
    """Float32, k from −300 to 300: with one maximum per sequence, early keys would underflow."""
    mixer = TestForms.build(form=form).float()
    x = torch.randn(1, 23, 32)
    mixer.k_proj.register_forward_hook(lambda m, i, k: 100 * k)
    y = mixer(x, ctx(tokens=23)).y
    assert y.isfinite().all()
    wide = mixer.double()
    close(y.double(), wide(x.double(), ctx(tokens=23)).y, 1e-3)
    gone = x.clone()
    gone[:, 9:] = 50 * torch.randn(1, 14, 32)
    mixer.float()
    close(mixer(gone, ctx(tokens=23)).y[:, :9], mixer(x, ctx(tokens=23)).y[:, :9], 1e-6)


def test_positions_end_where_the_factors_do() -> None:
    mixer = AFT(site(max_len=16), parts(), form="full").double().eval()
    assert re.search(r"16 positions and got position 16; .*form=simple", mixer.too_long(17))
    assert mixer.max_positions == 16
    assert AFT(site(max_len=16), parts(), form="simple").max_positions is None
    padded = ragged([16, 3], left=True)
    wider = torch.cat([torch.zeros(2, 4, dtype=torch.bool), padded], 1)
    x = torch.randn(2, 20, 32).double()
    close(mixer(x, ctx(wider)).y[:, 4:][padded], mixer(x[:, 4:], ctx(padded)).y[padded])


def test_factors_start_normal_and_small() -> None:
    mixer = AFT(site(max_len=400), parts(linear=NoLayer), rank=100)
    for factor in (mixer.a, mixer.b):
        assert factor.shape == (400, 100)
        normal(factor, std=0.01)


def test_running_sums_take_one_pass() -> None:
    """Hand-written gradient, at lengths around a square."""
    for t in (1, 2, 15, 16, 17, 24, 25, 26):
        k, v = (torch.randn(2, t, 3).double().requires_grad_() for _ in range(2))
        y = aft.running(aft.each(k, v, None)).read()
        none = torch.zeros(t, t).double()
        want = torch.stack([definition(*kv, none, causal=True) for kv in zip(k, v, strict=True)])
        close(y, want)
        close(grads(y.square().sum(), [k, v]), grads(want.square().sum(), [k, v]))
