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
from tests.kit import close, continues, ctx, double, grads, parts, site
from tests.mixer import recurrent
from tests.reference.path import path

OPTIONS = [
    {"kv_heads": 2, "rank": 5, "conv": 0, "chunk": 8},
    pytest.param({}, marks=pytest.mark.slow),
]


def build(**options: Any) -> Path:
    mixer = double(lambda: Path(site(), parts(), **options))
    assert isinstance(mixer, Path)
    with torch.no_grad():
        mixer.beta_bias.normal_()
    return mixer


def by_definition(mixer: Path, x: Tensor) -> Tensor:
    """Equations of the module's docstring."""
    q, k, v = mixer.project(x)
    w = mixer.w_proj.down(x) @ mixer.w_proj.up.T
    if mixer.conv.weight is not None:
        w = recurrent.conv(w, mixer.conv.weight)
    w = rearrange(F.silu(w), "b t (g k) -> b g t k", g=mixer.heads.g)
    w = w / w.norm(dim=-1, keepdim=True)
    beta = 2 * (mixer.beta_proj(x) + mixer.beta_bias).sigmoid().mT
    reads = mixer.heads.h // mixer.heads.g
    k, v, w, beta = (y.repeat_interleave(reads, 1) for y in (k, v, w, beta))
    return mixer.output(path(q / mixer.head_dim**0.5, k, v, w, beta)[0])


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("tokens", [1, 2, 17])
def test_is_the_definition(options: dict[str, Any], tokens: int) -> None:
    recurrent.is_the_recurrence(build(**options), by_definition, tokens)


@pytest.mark.parametrize("left", [True, False], ids=["left", "right"])
def test_padded_prompts_go_on(left: bool) -> None:
    mixer = build(kv_heads=2, chunk=8)
    lengths, new = (7, 12, 1), 2
    state = continues(
        mixer, lengths, new, left=left, want=lambda x: by_definition(mixer, x), tol=1e-10
    )
    assert state.cache.k.shape == (3, 2, 14, 8)


def test_gradients_pass_through_the_cache() -> None:
    mixer, x = build(), torch.randn(2, 11, 32, dtype=torch.float64)
    state, found = mixer.init_state(2), []
    for at, end in ((0, 4), (4, 5), (5, 11)):
        out = mixer(x[:, at:end], ctx(tokens=end - at, start=at), state)
        state = out.state
        found.append(out.y)
    y, want = torch.cat(found, 1), by_definition(mixer, x)
    close(y, want, 1e-10)
    close(grads(y.sin().sum(), mixer), grads(want.sin().sum(), mixer), 1e-10)


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


def test_half_precision_keeps_keys_wide() -> None:
    for dtype in (torch.bfloat16, torch.float16):
        mixer = build().to(dtype)
        x = 30 * torch.randn(1, 70, 32).to(dtype)
        out = mixer(x, ctx(tokens=70), mixer.init_state(1))
        then = mixer(x[:, :1], ctx(tokens=1, start=70), out.state)
        assert out.y.dtype == then.y.dtype == then.state.cache.v.dtype == dtype
        assert out.y.isfinite().all()
        assert then.y.isfinite().all()
        assert then.state.cache.k.dtype == torch.float32


def test_only_the_convolution_reads_other_documents() -> None:
    assert not build().documents
    mixer, x = build(conv=0), torch.randn(1, 9, 32, dtype=torch.float64)
    assert mixer.documents
    packed = replace(ctx(tokens=9), documents=torch.tensor([[0] * 4 + [1] * 5]))
    close(mixer(x, packed).y[:, 4:], mixer(x[:, 4:], ctx(tokens=5)).y)
