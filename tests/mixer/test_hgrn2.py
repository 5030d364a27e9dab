"""HGRN2 against its equations."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from chimera.mixer.hgrn2 import HGRN2
from tests.kit import close, ctx, double, parts, site
from tests.mixer import recurrent
from tests.reference.channels import decayed

#: Options, and the lower bound that they give: (1 + 3·loop)/(3·2) of layer 1 of 3, two loops.
OPTIONS: list[tuple[dict[str, Any], float]] = [
    ({}, 1 / 6),
    ({"heads": 2, "lower_bound": False, "chunk": 16}, 0.0),
]
options = pytest.mark.parametrize(("options", "low"), OPTIONS, ids=str)


def build(**options: Any) -> HGRN2:
    where = site(depth=3, layer=1, loops=2)
    mixer = double(lambda: HGRN2(where, parts(), **options))
    assert isinstance(mixer, HGRN2)
    return mixer


def by_token(mixer: HGRN2, x: Tensor, low: float) -> Tensor:
    """Equations of the module's docstring."""
    h = mixer.heads
    q, f, i = (
        rearrange(y, "b t (h k) -> b h t k", h=h)
        for y in (F.silu(mixer.q_proj(x)), mixer.f_proj(x).sigmoid(), mixer.i_proj(x))
    )
    f, k = low + (1 - low) * f, q.shape[-1]
    y, _ = decayed(q / k**0.5, 1 - f, i, f.log(), x.new_zeros(len(x), h, k, k))
    y = rearrange(y, "b h t v -> b t (h v)")
    return mixer.o_proj(y / (y.square().mean(-1, keepdim=True) + 1e-6).sqrt() * mixer.norm)


@options
@pytest.mark.parametrize("tokens", [1, 2, 65])
def test_is_the_recurrence(options: dict[str, Any], low: float, tokens: int) -> None:
    recurrent.is_the_recurrence(build(**options), lambda m, x: by_token(m, x, low), tokens)


@options
def test_decodes_with_a_constant_state(options: dict[str, Any], low: float) -> None:
    recurrent.decodes_with_a_constant_state(build(**options), lambda m, x: by_token(m, x, low))


@options
def test_ignores_padding(options: dict[str, Any], low: float) -> None:
    recurrent.ignores_padding(build(**options), lambda m, x: by_token(m, x, low))


def test_keeps_wide_states_in_half_precision() -> None:
    recurrent.keeps_wide_states_in_half_precision(build())


def test_the_bound_grows_with_the_logical_layer() -> None:
    mixer, x = build(), torch.randn(1, 9, 32, dtype=torch.float64)
    close(mixer(x, ctx(tokens=9, loop=1)).y, by_token(mixer, x, 4 / 6))


def test_extreme_gates_stay_finite() -> None:
    """σ is 0 and 1 to the last bit at ±2000: without a bound log f is −2000, not −∞."""
    mixer, x = build(lower_bound=False), torch.randn(1, 130, 32, dtype=torch.float64)
    with torch.no_grad():
        mixer.f_proj.weight.mul_(2000)
    y = mixer(x, ctx(tokens=130)).y
    assert y.isfinite().all()
    y.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in mixer.parameters())


def test_width_must_divide() -> None:
    with pytest.raises(ValueError, match="heads=5 does not divide the model width 32"):
        HGRN2(site(), parts(), heads=5)
