"""PaTH attention against its equations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from chimera.mixer.attention import Attention
from chimera.mixer.path import Path
from chimera.position.alibi import Alibi
from tests.kit import close, ctx, double, parts, site
from tests.mixer import forms
from tests.reference.path import path

OPTIONS = [
    {"kv_heads": 2, "rank": 5, "conv": 0, "chunk": 8},
    pytest.param({}, marks=pytest.mark.slow),
]


def build(**options: Any) -> Path:
    mixer = double(lambda: Path(site(), parts(), **options))
    with torch.no_grad():
        mixer.beta_bias.normal_()
    return mixer


def by_definition(mixer: Path, x: Tensor) -> Tensor:
    """Equations of the module's docstring."""
    q, k, v = mixer.project(x)
    w = mixer.w_proj.down(x) @ mixer.w_proj.up.T
    if mixer.conv.weight is not None:
        w = forms.conv(w, mixer.conv.weight)
    w = rearrange(F.silu(w), "b t (g k) -> b g t k", g=mixer.heads.g)
    w = w / w.norm(dim=-1, keepdim=True)
    beta = 2 * (mixer.beta_proj(x) + mixer.beta_bias).sigmoid().mT
    reads = mixer.heads.h // mixer.heads.g
    k, v, w, beta = (y.repeat_interleave(reads, 1) for y in (k, v, w, beta))
    return mixer.output(path(q / mixer.head_dim**0.5, k, v, w, beta)[0])


class TestForms(forms.Forms):
    build, oracle = staticmethod(build), staticmethod(by_definition)
    options = OPTIONS
    constant, wide = False, False
    tokens = (17,)


def test_half_precision_keeps_keys_wide() -> None:
    mixer = build().bfloat16()
    out = mixer(torch.randn(1, 9, 32).bfloat16(), ctx(tokens=9), mixer.init_state(1))
    assert (out.state.cache.k.dtype, out.state.cache.v.dtype) == (torch.float32, torch.bfloat16)


def test_without_maps_it_is_attention() -> None:
    """With β = 0, also the bias of positions and dropout's place are those of attention."""
    mixer = double(lambda: Path(site(), parts(position=Alibi)))
    plain = double(lambda: Attention(site(), parts(position=Alibi)))
    with torch.no_grad():
        mixer.beta_bias.fill_(-1e3)
    for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
        setattr(plain, name, getattr(mixer, name))
    x = torch.randn(2, 9, 32, dtype=torch.float64)
    close(mixer(x, ctx(tokens=9)).y, plain(x, ctx(tokens=9)).y, 1e-12)


def test_only_the_convolution_reads_other_documents() -> None:
    assert not build().documents
    mixer, x = build(conv=0), torch.randn(1, 9, 32, dtype=torch.float64)
    assert mixer.documents
    packed = replace(ctx(tokens=9), documents=torch.tensor([[0] * 4 + [1] * 5]))
    close(mixer(x, packed).y[:, 4:], mixer(x[:, 4:], ctx(tokens=5)).y)
