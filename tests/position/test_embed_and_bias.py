"""Positions added to the embedding, biases of scores, CoPE and FIRE by loops; by layer."""

from __future__ import annotations

import math
import re
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
from chimera.position.relative import Relative
from chimera.position.rope import Rotary
from chimera.position.sinusoidal import Sinusoidal
from tests.kit import close, continues, double, grads, normal, parts, site


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


def test_learned_adds_its_row() -> None:
    learned = Learned(site(max_len=8), 4, 8)
    x, pos = torch.randn(2, 3, 32), torch.tensor([[0, 1, 2], [5, 6, 7]])
    close(learned.embed(x, pos), x + learned.vectors[pos])
    close(learned.embed(x, pos[:1]), x + learned.vectors[:3])


def test_learned_says_where_its_table_ends() -> None:
    learned = Learned(site(max_len=8), 4, 8)
    assert learned.max_positions == 8
    line = learned.too_long(9)
    assert re.search(r"max_len=8 .* sequence has 9; .*sinusoidal, rope", line)
    assert "\n" not in line


def test_learned_has_a_shape_on_the_meta_device() -> None:
    with torch.device("meta"):
        learned = Learned(site(max_len=8), 4, 8)
        assert learned.embed(torch.empty(2, 8, 32), torch.arange(8)[None]).shape == (2, 8, 32)


def test_sinusoidal_is_the_papers_formula() -> None:
    x, pos = torch.zeros(1, 3, 32).double(), torch.tensor([[0, 7, 4000]])
    got = Sinusoidal(site(), 4, 8, scale=0.5).embed(x, pos)[0]
    for row, p in zip(got, (0, 7, 4000), strict=True):
        for i in range(16):
            angle = p / 10000 ** (2 * i / 32)
            assert math.isclose(row[2 * i], 0.5 * math.sin(angle), abs_tol=1e-9)
            assert math.isclose(row[2 * i + 1], 0.5 * math.cos(angle), abs_tol=1e-9)


def test_sinusoidal_keeps_the_dtype() -> None:
    x = torch.zeros(2, 3, 32, dtype=torch.bfloat16)
    assert Sinusoidal(site(), 4, 8).embed(x, torch.arange(3)[None]).dtype == torch.bfloat16


def test_sinusoidal_needs_an_even_width() -> None:
    with pytest.raises(ValueError, match="needs an even model width"):
        Sinusoidal(site(dim=33), 3, 11)


def test_learned_vectors_start_normal() -> None:
    normal(Learned(site(max_len=500), 4, 8).vectors, std=0.02)
    normal(Learned(site(max_len=500), 4, 8, init_std=0.3).vectors, std=0.3)


@pytest.mark.parametrize("heads", [1, 3, 8])
def test_alibi_is_a_slope_times_the_distance(heads: int) -> None:
    pos_q, pos_k = torch.tensor([[4], [9]]), torch.tensor([[0, 4, 6], [1, 9, 5]])
    bias = Alibi(site(), heads, 8).bias(pos_q, pos_k)
    assert bias.shape == (2, heads, 1, 3)
    for h in range(heads):
        slope = 2 ** (-8 * (h + 1) / heads)
        want = [[-4 * slope, 0, -2 * slope], [-8 * slope, 0, -4 * slope]]
        close(bias[:, h, 0], torch.tensor(want), 1e-6)


def test_relative_looks_up_the_clipped_distance() -> None:
    relative = Relative(site(), 4, 8, max_distance=3)
    assert relative.biases.shape == (7, 4)
    pos_q, pos_k = torch.tensor([[5]]), torch.tensor([[0, 2, 3, 5, 6, 8, 99]])
    apart = [3, 3, 2, 0, -1, -3, -3]
    want = torch.stack([relative.biases[3 + d] for d in apart], -1)
    close(relative.bias(pos_q, pos_k), want[None, :, None])


def test_relative_biases_start_normal() -> None:
    biases = Relative(site(), 16, 8, max_distance=500, init_std=0.3).biases
    assert biases.shape == (1001, 16)
    normal(biases, std=0.3)
