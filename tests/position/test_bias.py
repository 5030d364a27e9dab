"""Position biases of scores: ALiBi and learned relative biases (SPEC Positions)."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from chimera.contract import Position
from chimera.mixer.attention import Attention
from chimera.position.alibi import Alibi
from chimera.position.relative import Relative
from tests.kit import close, ctx, double, normal, parts, ragged, site


@pytest.mark.parametrize("heads", [1, 3, 8])
def test_alibi_is_a_slope_times_the_distance(heads: int) -> None:
    pos_q, pos_k = torch.tensor([[4], [9]]), torch.tensor([[0, 4, 6], [1, 9, 5]])
    bias = Alibi(site(), heads, 8).bias(pos_q, pos_k)
    assert bias.shape == (2, heads, 1, 3)
    for h in range(heads):
        slope = 2 ** (-8 * (h + 1) / heads)
        want = [[-4 * slope, 0, -2 * slope], [-8 * slope, 0, -4 * slope]]
        close(bias[:, h, 0], torch.tensor(want), 1e-6)


def test_alibi_slopes_are_the_papers_for_eight_heads() -> None:
    bias = Alibi(site(), 8, 8).bias(torch.tensor([[1]]), torch.tensor([[0]]))
    close(-bias.flatten(), torch.tensor([2.0**-i for i in range(1, 9)]))


def test_relative_looks_up_the_clipped_distance() -> None:
    relative = Relative(site(), 4, 8, max_distance=3)
    assert relative.biases.shape == (7, 4)
    pos_q, pos_k = torch.tensor([[5]]), torch.tensor([[0, 2, 3, 5, 6, 8, 99]])
    apart = [3, 3, 2, 0, -1, -3, -3]
    want = torch.stack([relative.biases[3 + d] for d in apart], -1)
    close(relative.bias(pos_q, pos_k), want[None, :, None])


@pytest.mark.parametrize("causal", [True, False], ids=["decoder", "encoder"])
@pytest.mark.parametrize("left", [True, False], ids=["left", "right"])
@pytest.mark.parametrize("position", [Alibi, Relative])
def test_attention_with_padding(position: type[Position], left: bool, causal: bool) -> None:
    m: Any = double(lambda: Attention(site(causal=causal), parts(position=position)))
    mask = ragged([7, 3], left=left)
    x = torch.randn(2, 7, 32).double()
    y = m(x, ctx(mask)).y
    for row, got, real in zip(x, y, mask, strict=True):
        close(got[real], m(row[real][None], ctx(tokens=int(real.sum()))).y[0])


@pytest.mark.parametrize("position", [Alibi, Relative])
def test_attention_by_its_scores(position: type[Position]) -> None:
    m: Any = double(lambda: Attention(site(), parts(position=position)))
    x, pos = torch.randn(1, 6, 32).double(), torch.arange(6)
    q, k, v = (p(x).unflatten(-1, (4, 8)).transpose(1, 2) for p in (m.q_proj, m.k_proj, m.v_proj))
    bias = m.position.bias(pos[None], pos[None]).double()
    above = torch.ones(6, 6).triu(1).bool()
    scores = (q @ k.mT / 8**0.5 + bias).masked_fill(above, float("-inf")).softmax(-1)
    close(m(x, ctx(tokens=6)).y, m.o_proj((scores @ v).transpose(1, 2).flatten(2)))


def test_relative_biases_start_normal() -> None:
    biases = Relative(site(), 16, 8, max_distance=500, init_std=0.3).biases
    assert biases.shape == (1001, 16)
    normal(biases, std=0.3)
