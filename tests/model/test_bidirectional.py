"""`Bidirectional`: inputs of each pass, padding, positions, shared and separate weights."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from chimera.contract import BOTH, CAUSAL, Context, Mixer, Out, Parts, Position, Site
from chimera.mixer.attention import Attention
from chimera.model.bidirectional import Bidirectional, reversal
from tests.kit import close, ctx, double, grads, parts, ragged, site


class Sum(Mixer):
    """Simplest causal mixer: y_t = w Σ_{s ≤ t} x_s over real tokens."""

    component = "sum"
    directions = CAUSAL

    def __init__(self, site: Site, parts: Parts) -> None:
        super().__init__()
        assert site.causal
        self.weight = torch.nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor, ctx: Context, state: Any = None) -> Out:
        kept = x if ctx.mask is None else x * ctx.mask[..., None]
        loss = self.weight.square().sum()
        return Out(self.weight * kept.cumsum(1), aux={"size": loss}, stats={"w": self.weight[0]})


class Slope(Position):
    """Bias that increases with the key's position, so that direction has an effect."""

    provides = frozenset({"bias"})

    def bias(self, pos_q: Tensor, pos_k: Tensor) -> Tensor:
        ahead = (pos_k[:, None, :] - pos_q[:, :, None])[:, None]
        return 0.3 * ahead.double().expand(-1, 4, -1, -1)


def build(inner: Any = Sum, position: Any = None, **options: Any) -> Bidirectional:
    made = parts(position=position) if position else parts()
    return double(lambda: Bidirectional(site(causal=False), made, inner, **options))


def rows(*shape: int) -> Tensor:
    return torch.randn(*shape, 32, dtype=torch.float64)


def test_each_token_sees_all_and_itself_twice() -> None:
    x = rows(2, 5)
    close(build()(x, ctx(tokens=5)).y, x.sum(1, keepdim=True) + x)


def test_reversal_turns_real_tokens_wherever_the_padding_is() -> None:
    mask = torch.tensor([[1, 1, 1, 0, 0], [0, 0, 1, 1, 1], [1, 0, 1, 0, 1], [0, 0, 0, 0, 0]]) > 0
    index = reversal(mask)
    expected = [[2, 1, 0, 3, 4], [0, 1, 4, 3, 2], [4, 1, 2, 3, 0], [0, 1, 2, 3, 4]]
    assert index.tolist() == expected
    assert index.gather(1, index).tolist() == [[0, 1, 2, 3, 4]] * 4


@pytest.mark.sampled(3)
@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("inner", [Sum, partial(Attention, kv_heads=2)])
@pytest.mark.parametrize("shared", [True, False])
def test_padding_gives_the_unpadded_numbers(inner: Any, left: bool, shared: bool) -> None:
    both, mask, x = build(inner, Slope, shared=shared), ragged([6, 1, 4], left=left), rows(3, 6)
    y = both(x, ctx(mask)).y
    assert torch.isfinite(y).all()
    for i, n in enumerate((6, 1, 4)):
        close(y[i][mask[i]], both(x[i][mask[i]][None], ctx(tokens=n)).y[0])


def test_the_backward_pass_is_the_forward_pass_of_the_mirrored_text() -> None:
    """Both passes have positive distances to past tokens."""
    both, x = build(Attention, Slope, shared=True), rows(2, 7)
    ahead = both.ahead(x, ctx(tokens=7)).y
    mirrored = both.ahead(x.flip(1), ctx(tokens=7)).y.flip(1)
    close(both(x, ctx(tokens=7)).y, ahead + mirrored)
    close(both(x.flip(1), ctx(tokens=7)).y.flip(1), ahead + mirrored)


def test_weights_are_shared_or_not() -> None:
    own, one = build(Attention), build(Attention, shared=True)
    count = sum(p.numel() for p in own.parameters())
    assert count == 2 * sum(p.numel() for p in one.parameters())
    assert not torch.equal(own.ahead.q_proj.weight, own.back.q_proj.weight)
    for both in (own, one):
        loss = both(rows(1, 6), ctx(tokens=6)).y.square().sum()
        assert all(g.any() for g in grads(loss, both))


def test_it_is_what_it_wraps() -> None:
    both = build(Attention)
    assert both.component == "attention"
    assert both.position_hooks == Attention.position_hooks
    assert both.directions == BOTH
    assert build().component == "sum"


def test_losses_and_statistics_are_means_of_both_passes() -> None:
    both = build()
    with torch.no_grad():
        both.back.weight.fill_(3.0)
    out = both(rows(1, 2), ctx(tokens=2))
    assert out.aux["size"].item() == (1 + 9) / 2
    assert out.stats["w"].item() == (1 + 3) / 2
