"""Linear attention against its definition, in all three forms (SPEC M5)."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from chimera.mixer.linear import LinearAttention
from chimera.position.hope import Hope
from chimera.position.rope import Rotary
from tests.kit import close, ctx, double, grads, in_pieces, parts, ragged, site

LENGTHS = (1, 2, 63, 64, 65, 257)


def build(causal: bool = True, position: Any = None, **options: Any) -> Any:
    chosen = parts() if position is None else parts(position=position)
    return double(lambda: LinearAttention(site(causal=causal), chosen, **options))


def heads(x: Tensor) -> Tensor:
    return x.unflatten(-1, (4, -1)).transpose(1, 2)


@pytest.mark.parametrize("causal", [True, False], ids=["decoder", "encoder"])
@pytest.mark.parametrize("options", [{}, {"form": "parallel"}, {"chunk_size": 5}])
def test_equals_a_weighted_mean(causal: bool, options: dict) -> None:
    m = build(causal, **options)
    x = torch.randn(2, 17, 32).double()
    q, k = F.elu(heads(m.q_proj(x))) + 1, F.elu(heads(m.k_proj(x))) + 1
    w = q @ k.mT
    w = w.tril() if causal else w
    o = (w / w.sum(-1, keepdim=True)) @ heads(m.v_proj(x))
    close(m(x, ctx(tokens=17)).y, m.o_proj(o.transpose(1, 2).flatten(2)))


@pytest.mark.parametrize("causal", [True, False], ids=["decoder", "encoder"])
def test_a_rotation_turns_the_numerator_only(causal: bool) -> None:
    """RoFormer eq. 19."""
    m = build(causal, partial(Rotary, base=50.0))
    x, pos = torch.randn(2, 9, 32).double(), torch.arange(9)
    q, k = F.elu(heads(m.q_proj(x))) + 1, F.elu(heads(m.k_proj(x))) + 1
    angle = (pos[:, None] - pos)[..., None] * 50.0 ** -(torch.arange(4).double() / 4)
    zq, zk = (torch.complex(z[..., 0::2], z[..., 1::2]) for z in (q, k))
    above = (zq[..., :, None, :] * zk[..., None, :, :].conj() * torch.exp(1j * angle)).real.sum(-1)
    below = q @ k.mT
    if causal:
        above, below = above.tril(), below.tril()
    o = above @ heads(m.v_proj(x)) / below.sum(-1, keepdim=True)
    close(m(x, ctx(tokens=9)).y, m.o_proj(o.transpose(1, 2).flatten(2)))


@pytest.mark.parametrize("t", LENGTHS)
@pytest.mark.parametrize("position", [None, Rotary, Hope])
def test_three_forms_agree(t: int, position: Any) -> None:
    x = torch.randn(2, t, 32).double().requires_grad_()
    found = []
    for options in ({"form": "parallel"}, {"chunk_size": 24}):
        m = build(True, position, **options)
        out = m(x, ctx(tokens=t), m.init_state(2))
        close(m(x, ctx(tokens=t)).y, out.y)
        found.append((out.y, tuple(out.state), *grads(out.y.sin().sum(), [x, *m.parameters()])))
    y, states = in_pieces(m, x, (1, 2, 1, 60, 1, 192))
    found.append((y, tuple(states[-1]), *grads(y.sin().sum(), [x, *m.parameters()])))
    close(found[1], found[0])
    close(found[2], found[0])


@pytest.mark.parametrize("causal", [True, False], ids=["decoder", "encoder"])
@pytest.mark.parametrize("left", [True, False], ids=["left", "right"])
@pytest.mark.parametrize("position", [None, Rotary, Hope])
def test_padding_changes_nothing(causal: bool, left: bool, position: Any) -> None:
    m = build(causal, position, chunk_size=4)
    mask = ragged([11, 3, 1], left=left)
    x = torch.randn(3, 11, 32).double().requires_grad_()
    out = m(x, ctx(mask), m.init_state(3) if causal else None)
    assert torch.isfinite(out.y).all()
    assert all(torch.isfinite(g).all() for g in grads(out.y.sum(), [x, *m.parameters()]))
    for i, real in enumerate(mask):
        n = int(real.sum())
        want = m(x[i, real][None], ctx(tokens=n), m.init_state(1) if causal else None)
        close(out.y[i, real], want.y[0])
        if causal:
            close([s[i] for s in out.state], [s[0] for s in want.state])


def test_runs_in_bfloat16() -> None:
    m = build().float()
    x = torch.randn(2, 40, 32)
    want = m(x, ctx(tokens=40)).y
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = m(x, ctx(tokens=40), m.init_state(2))
    assert {s.dtype for s in out.state} == {torch.float32}
    assert (out.y.float() - want).abs().max() < 0.05 * want.abs().max()
    m = m.bfloat16()
    assert m(x.bfloat16(), ctx(tokens=40), m.init_state(2)).y.dtype == torch.bfloat16


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="heads=3"):
        LinearAttention(site(heads=3), parts())
    with pytest.raises(ValueError, match="no state"):
        LinearAttention(site(causal=False), parts()).init_state(1)
