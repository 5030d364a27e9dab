"""Positions added to the embedding, and biases of scores (SPEC Positions)."""

from __future__ import annotations

import math
import re

import pytest
import torch

from chimera.position.alibi import Alibi
from chimera.position.learned import Learned
from chimera.position.relative import Relative
from chimera.position.sinusoidal import Sinusoidal
from tests.kit import close, normal, site


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
