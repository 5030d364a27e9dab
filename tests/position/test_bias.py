"""Position biases of scores: ALiBi and learned relative biases (SPEC Positions)."""

from __future__ import annotations

import pytest
import torch

from chimera.position.alibi import Alibi
from chimera.position.relative import Relative
from tests.kit import close, normal, site


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
