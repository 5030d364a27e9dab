"""Log-linear Mamba-2 against its equations."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from einops import rearrange
from torch import Tensor

from chimera.mixer.log_linear import LogLinear
from tests.kit import double, parts, site
from tests.mixer import forms
from tests.mixer.test_mamba2 import inputs, output

OPTIONS = [
    {"state": 3, "head_dim": 8, "groups": 2, "levels": 3, "chunk": 16},
    pytest.param({"state": 5}, marks=pytest.mark.slow),
]


def build(**options: Any) -> LogLinear:
    mixer = double(lambda: LogLinear(site(), parts(), **{"state": 5, **options}))
    with torch.no_grad():
        mixer.L.normal_()
    return mixer


def by_token(mixer: LogLinear, x: Tensor) -> Tensor:
    """Equations of the module's docstring; states merge as carries do in a counter."""
    z, u, b, c, delta = inputs(mixer, x)
    b, c = (y.repeat_interleave(mixer.heads // mixer.groups, 2) for y in (b, c))
    scale = rearrange(mixer.level_proj(x), "b t (h l) -> b t h l", h=mixer.heads)
    scale = torch.log1p((scale * mixer.L).exp())
    states: dict[int, Tensor] = {}
    ys = []
    for t in range(x.shape[1]):
        keep = (-mixer.decay.A_log.exp() * delta[:, t]).exp()[..., None, None]
        states = {level: keep * state for level, state in states.items()}
        own = torch.einsum("bh,bhn,bhp->bhnp", delta[:, t], b[:, t], u[:, t])
        s = mixer.D[:, None] * u[:, t]
        for level, state in {**states, 0: own}.items():
            weight = scale[:, t, :, min(level, mixer.levels - 1)]
            s = s + weight[..., None] * torch.einsum("bhn,bhnp->bhp", c[:, t], state)
        ys.append(s)
        bit = 1
        while bit in states:
            own, bit = own + states.pop(bit), bit + 1
        states[bit] = own
    return output(mixer, torch.stack(ys, 1), z)


class TestForms(forms.Forms):
    build, oracle = staticmethod(build), staticmethod(by_token)
    options = OPTIONS


def test_levels_follow_the_longest_text() -> None:
    assert [LogLinear(site(max_len=n), parts()).levels for n in (64, 65, 16384)] == [7, 8, 15]
