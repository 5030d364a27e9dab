"""Attention-free transformer against a reference with one query at a time (SPEC M15)."""

from __future__ import annotations

import re
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from chimera.mixer.aft import AFT
from chimera.ops import aft
from tests.kit import (
    NoLayer,
    close,
    ctx,
    double,
    grads,
    normal,
    parts,
    ragged,
    site,
)  # fmt: skip
from tests.mixer import forms
from tests.reference import aft as reference

WINDOW = 5


def build(form: str = "full", causal: bool = True, max_len: int = 64, window: int = WINDOW) -> Any:
    where = site(causal=causal, max_len=max_len)
    mixer = double(lambda: AFT(where, parts(), form=form, rank=6, window=window))
    for p in mixer.parameters(
        recurse=False
    ):  # with small initial a and b, errors in w would not show
        nn.init.normal_(p)
    return mixer


def expected(mixer: Any, x: Tensor) -> Tensor:
    """Texts [b t d] by the reference, one at a time, with the mixer's projections."""
    t = x.shape[1]
    w = x.new_zeros(t, t) if mixer.form == "simple" else mixer.a[:t] @ mixer.b[:t].T
    if mixer.form == "local":
        at = torch.arange(t)
        w = w * ((at[:, None] - at).abs() < mixer.window)
    pairs = zip(mixer.k_proj(x), mixer.v_proj(x), strict=True)
    y = torch.stack([reference.aft(k, v, w, causal=mixer.causal) for k, v in pairs])
    return mixer.o_proj(mixer.q_proj(x).sigmoid() * y)


class TestForms(forms.Forms):
    build, oracle = staticmethod(build), staticmethod(expected)
    options: ClassVar = [{"form": "local"}, {"form": "simple"}]
    encoders, wide = True, False
    tokens, size = (6, 60), 1.0
    tol = 1e-9


class TestFull(TestForms):
    options: ClassVar = [{"form": "full"}]
    constant = False


@pytest.mark.parametrize("form", ["full", "local", "simple"])
def test_a_huge_key_leaves_the_past_exact(form: str) -> None:
    """Float32, k from −300 to 300: with one maximum per sequence, early keys would underflow."""
    mixer = build(form).float()
    x = torch.randn(1, 23, 32)
    mixer.k_proj.register_forward_hook(lambda m, i, k: 100 * k)
    y = mixer(x, ctx(tokens=23)).y
    assert y.isfinite().all()
    wide = mixer.double()
    want = torch.stack([wide(x.double(), ctx(tokens=23)).y[0]])
    close(y.double(), want, 1e-3)
    gone = x.clone()
    gone[:, 9:] = 50 * torch.randn(1, 14, 32)
    mixer.float()
    close(mixer(gone, ctx(tokens=23)).y[:, :9], mixer(x, ctx(tokens=23)).y[:, :9], 1e-6)


def test_positions_end_where_the_factors_do() -> None:
    mixer = build("full", max_len=16)
    assert re.search(r"16 positions and got position 16; .*form=simple", mixer.too_long(17))
    assert mixer.max_positions == 16
    assert build("simple", max_len=16).max_positions is None
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
        want = torch.stack([reference.aft(*kv, none, causal=True) for kv in zip(k, v, strict=True)])
        close(y, want)
        close(grads(y.square().sum(), [k, v]), grads(want.square().sum(), [k, v]))
