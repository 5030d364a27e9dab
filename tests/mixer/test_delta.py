"""DeltaNet and DeltaProduct against the recurrence with the weights of the mixer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from chimera.mixer.delta import DeltaProduct
from tests.kit import NoLayer, close, ctx, double, grads, parts, ragged, site, uniform
from tests.reference.delta import delta as naive

OPTIONS: list[dict[str, Any]] = [
    {},
    {"order": 2, "negative_eigenvalues": True},
    {"order": 3, "decay": True, "heads": 2},
    {"order": 2, "decay": True, "conv": 4},
]
options = pytest.mark.parametrize("options", OPTIONS, ids=str)


def build(**options: Any) -> DeltaProduct:
    mixer = double(lambda: DeltaProduct(site(), parts(), **options))
    assert isinstance(mixer, DeltaProduct)
    return mixer


def conv(x: Tensor, weight: Tensor) -> Tensor:
    """Causal convolution by torch."""
    taps = weight.shape[1]
    return F.conv1d(F.pad(x.mT, (taps - 1, 0)), weight[:, None], groups=len(weight)).mT


def by_token(mixer: DeltaProduct, x: Tensor, **options: Any) -> Tensor:
    """Equations of the module's docstring."""
    h, n = mixer.heads, mixer.order
    q, k, v = mixer.q_proj(x), mixer.k_proj(x), mixer.v_proj(x)
    if options.get("conv"):
        q, k, v = (conv(y, w) for y, w in zip((q, k, v), mixer.convs, strict=True))
    q, k, v = (F.silu(y) for y in (q, k, v))
    q = rearrange(q, "b t (h k) -> b h t k", h=h)
    k, v = (rearrange(y, "b t (n h k) -> b h t n k", n=n, h=h) for y in (k, v))
    q, k = (y / y.norm(dim=-1, keepdim=True) for y in (q, k))
    beta = rearrange(mixer.beta_proj(x).sigmoid(), "b t (n h) -> b h t n 1", h=h)
    decay = None
    if options.get("decay"):
        dt = torch.log1p((mixer.decay_proj(x) + mixer.decay_bias).exp())
        decay = (-mixer.rate.exp() * dt).mT
    if options.get("negative_eigenvalues"):
        beta = 2 * beta
    y, _ = naive(q, k, v, beta, decay, torch.zeros(len(x), h, q.shape[-1], q.shape[-1]).to(x))
    y = y / (y.square().mean(-1, keepdim=True) + 1e-6).sqrt() * mixer.norm.weight
    return mixer.o_proj(rearrange(y, "b h t k -> b t (h k)"))


@options
@pytest.mark.parametrize("tokens", [1, 2, 65])
def test_is_the_recurrence(options: dict[str, Any], tokens: int) -> None:
    mixer, x = build(**options), torch.randn(2, tokens, 32, dtype=torch.float64)
    got, want = mixer(x, ctx(tokens=tokens)).y, by_token(mixer, x, **options)
    close(got, want)
    weight = torch.randn_like(got)
    close(grads((got * weight).sum(), mixer), grads((want * weight).sum(), mixer), 1e-8)


@options
def test_decoding_continues_the_prefill(options: dict[str, Any]) -> None:
    mixer, x = build(**options), torch.randn(2, 140, 32, dtype=torch.float64)
    full = mixer(x, ctx(tokens=140))
    assert full.state is None
    state, reads = mixer.init_state(2), []
    sizes = [s.numel() for s in (state.memory, *state.tails)]
    for width in (1, 2, 1, 129, 1, 1, 5):
        at = sum(y.shape[1] for y in reads)
        out = mixer(x[:, at : at + width], ctx(tokens=width, start=at), state)
        state = out.state
        reads.append(out.y)
        assert [
            s.numel() for s in (state.memory, *state.tails)
        ] == sizes  # the state has constant size
    close(torch.cat(reads, 1), full.y)


@options
@pytest.mark.parametrize("left", [True, False], ids=["left", "right"])
def test_padding_changes_nothing_and_decoding_goes_on(options: dict[str, Any], left: bool) -> None:
    lengths, mixer = (7, 70, 1), build(**options)
    x, mask = torch.randn(3, 70, 32, dtype=torch.float64), ragged(lengths, left=left)
    more = torch.randn(3, 2, 32, dtype=torch.float64)
    out = mixer(x, ctx(mask), mixer.init_state(3))
    then = mixer(more[:, :1], ctx(tokens=1), out.state)
    last = mixer(more[:, 1:], ctx(tokens=1), then.state)
    for row in range(3):
        alone = torch.cat([x[row, mask[row]], more[row]])[None]
        want = mixer(alone, ctx(tokens=alone.shape[1])).y[0]
        close(torch.cat([out.y[row, mask[row]], then.y[row], last.y[row]]), want)


def test_bfloat16_keeps_a_wide_memory() -> None:
    mixer = build(order=2, decay=True, conv=4).bfloat16()
    state = mixer.init_state(1)
    out = mixer(torch.randn(1, 9, 32, dtype=torch.bfloat16), ctx(tokens=9), state)
    assert out.y.dtype == torch.bfloat16
    assert state.memory.dtype == out.state.memory.dtype == torch.float32


@pytest.mark.parametrize("negative", [True, False])
def test_only_negative_eigenvalues_reflect(negative: bool) -> None:
    """β near 2 reflects the state at each token, which computes parity (arXiv 2411.12537)."""
    mixer = build(heads=1, negative_eigenvalues=negative)
    with torch.no_grad():
        mixer.beta_proj.weight.fill_(1.0)  # β is at its maximum for these inputs
        mixer.v_proj.weight.zero_()  # β = 0 writes nothing
    x = torch.full((1, 4, 32), 5.0, dtype=torch.float64)
    state, found = mixer.init_state(1), []
    state = state._replace(memory=torch.eye(32, dtype=torch.float64)[None, None])
    for t in range(4):
        state = mixer(x[:, t : t + 1], ctx(tokens=1, start=t), state).state
        found.append(float(torch.linalg.det(state.memory[0, 0])))
    if negative:
        assert [round(value, 3) for value in found] == [-1, 1, -1, 1]
    else:  # β near 1 takes the key's direction away: 0 up to rounding, of either sign
        assert max(map(abs, found)) < 1e-6


def test_width_must_divide() -> None:
    with pytest.raises(ValueError, match="heads=5 does not divide the model width 32"):
        DeltaProduct(site(), parts(), heads=5)


def test_initial_decay_is_mambas() -> None:
    """The step softplus(b) is log-uniform in [0.001, 0.1], the rate exp(a) uniform in [1, 16]."""
    heads = 20_000
    where, chosen = site(dim=heads, heads=heads), parts(linear=NoLayer)
    mixer = DeltaProduct(where, chosen, decay=True).double()
    uniform(
        F.softplus(mixer.decay_bias).log10(), -3 - 1e-5, -1 + 1e-5
    )  # initial values are float32
    uniform(mixer.rate.exp(), 1 - 1e-5, 16 + 1e-5)


def test_initial_convolutions_are_uniform_by_their_taps() -> None:
    mixer = DeltaProduct(site(dim=4000), parts(linear=NoLayer), order=2, conv=4)
    assert [tuple(w.shape) for w in mixer.convs] == [(4000, 4), (8000, 4), (8000, 4)]
    for weight in mixer.convs:
        uniform(weight, -1 / 2, 1 / 2)
