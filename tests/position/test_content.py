"""CoPE and FIRE against loops over tokens; partial rotations; positions by layer."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from chimera.contract_tests import zoo
from chimera.errors import UserError
from chimera.mixer.attention import Attention
from chimera.position import fire
from chimera.position.alibi import Alibi
from chimera.position.by_layer import ByLayer
from chimera.position.cope import Cope
from chimera.position.fire import Fire
from chimera.position.learned import Learned
from chimera.position.none import NoPosition
from chimera.position.rope import Rotary
from tests.kit import close, continues, double, grads, parts, site


def cope_by_loops(q: Tensor, k: Tensor, e: Tensor, causal: bool) -> Tensor:
    """Equations 3 to 5 of 2405.18719, a score at a time; q, k [h t k]."""
    (h, t, width), longest = q.shape, len(e) - 1
    bias = torch.zeros(h, t, t, dtype=q.dtype)
    for head in range(h):
        for i in range(t):
            for j in range(i + 1 if causal else t):
                between = range(min(i, j), max(i, j) + 1)
                gates = [torch.sigmoid(q[head, i] @ k[head, n] / width**0.5) for n in between]
                p = torch.stack(gates).sum().clamp(max=longest)
                low = math.floor(p)
                z_low, z_high = q[head, i] @ e[low], q[head, i] @ e[min(low + 1, longest)]
                bias[head, i, j] = ((low + 1 - p) * z_low + (p - low) * z_high) / width**0.5
    return bias


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("longest", [3, 64])
def test_cope_is_its_equations(causal: bool, longest: int) -> None:
    position = Cope(site(causal=causal), 2, 8, longest=longest, init_std=1.0).double()
    q, k = torch.randn(2, 1, 2, 7, 8).double().requires_grad_().unbind(0)
    want = cope_by_loops(q[0], k[0], position.vectors, causal)
    got = position.content(q, k, None)[0]
    seen = torch.ones(7, 7).tril() if causal else torch.ones(7, 7)
    weight = torch.randn(2, 7, 7).double() * seen
    close(got * seen, want * seen, 1e-10)
    of = [position.vectors]
    close(grads((got * weight).sum(), of), grads((want * weight).sum(), of), 1e-10)


@pytest.mark.parametrize("left", [True, False])
def test_cope_counts_no_padding_and_decodes(left: bool) -> None:
    def build() -> Attention:
        position = lambda *of: Cope(*of, longest=4, init_std=1.0)  # noqa: E731
        return Attention(site(), parts(position=position), kv_heads=2)

    continues(double(build), [5, 9, 2], 3, left=left)


@pytest.mark.parametrize("causal", [True, False])
def test_fire_is_its_equation(causal: bool) -> None:
    """Equation 19 of 2310.04418, a distance at a time, below and above the threshold."""
    position = Fire(site(causal=causal), 3, 8, threshold=5.0).double()
    position.scale.data.fill_(0.25)  # exact in float32 too
    pos = torch.arange(12)[None]
    got = position.bias(pos, pos)
    c, first, second = 0.25, position.up, position.down
    psi = lambda x: math.log(c * x + 1)  # noqa: E731
    for i in range(12):
        for j in range(i + 1 if causal else 12):
            ratio = psi(abs(i - j)) / (psi(max(i, j, 5.0)) + 1e-6)
            hidden = (first.weight[:, 0] * ratio + first.bias).clamp(min=0)
            close(got[0, :, i, j], second.weight @ hidden + second.bias, 1e-10)
    assert Fire(site(), 3, 8).threshold == 512


def test_fire_in_blocks_of_queries_is_fire(monkeypatch: pytest.MonkeyPatch) -> None:
    position, pos = (
        Fire(site(), 3, 8).double(),
        torch.stack([torch.arange(12), torch.arange(3, 15)]),
    )
    found = []
    for pairs in (10**6, 50):  # rows of 12 keys for two texts: two at a time
        monkeypatch.setattr(fire, "PAIRS", pairs)
        bias = position.bias(pos, pos)
        found.append([bias, *grads(bias.sin().sum(), position)])
    close(found[1], found[0], 1e-12)


@pytest.mark.parametrize("fraction", [0.25, 0.5])
def test_partial_rotation_leaves_the_other_channels(fraction: float) -> None:
    whole, part = Rotary(site(), 4, int(16 * fraction)), Rotary(site(), 4, 16, fraction=fraction)
    q, k = torch.randn(2, 2, 4, 9, 16).double()
    pos, width = torch.arange(9)[None], int(16 * fraction)
    for got, x, want in zip(
        part.rotate(q, k, pos),
        (q, k),
        whole.rotate(q[..., :width], k[..., :width], pos),
        strict=True,
    ):
        close(got[..., :width], want, 1e-12)
        assert got[..., width:].equal(x[..., width:])
    for bad in (0.05, 0.2):
        with pytest.raises(ValueError, match=f"position.fraction={bad} rotates"):
            Rotary(site(), 4, 16, fraction=bad)


def by_layer(layer: int, **members: Any) -> ByLayer:
    members = members or {"rope": Rotary, "none": NoPosition}
    where = site(depth=8, layer=layer)
    return ByLayer(where, 4, 8, cycle=list(members), members=members)


def test_positions_by_layer() -> None:
    q = torch.randn(2, 4, 9, 8).double()
    pos = torch.arange(9)[None]
    for layer in range(4):
        position, rotates = by_layer(layer), layer % 2 == 0
        assert position.provides == {"rotate"}
        assert position.rotate(q, q, pos)[0].equal(q) != rotates
    assert by_layer(1, rope=Rotary, alibi=Alibi).bias(pos, pos) is not None
    assert by_layer(0, rope=Rotary, alibi=Alibi).provides == {"rotate", "bias"}
    with pytest.raises(ValueError, match=r"position\.cycle has learned, which adds"):
        by_layer(0, learned=Learned)


@pytest.mark.parametrize("position", ["rope_nope", "cope"])
def test_a_mixer_that_cannot_is_refused_in_one_line(position: str) -> None:
    with pytest.raises(UserError, match=f"position={position} needs .*mixer=mamba") as caught:
        zoo.build(zoo.TINY, {"mixer": "mamba", "position": position}, causal=True)
    assert "\n" not in str(caught.value)
