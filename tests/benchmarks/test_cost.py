"""Rivals equal the mixers they are compared with; peak memory and exponents are correct."""

from __future__ import annotations

import pytest
import torch
from benchmarks.mixers import exponent
from benchmarks.parts import Alone
from benchmarks.peers import Scores, peers
from benchmarks.timing import peak
from torch import Tensor, nn

from tests.kit import close

DIM, HEADS, LENGTH = 32, 4, 48


@torch.no_grad()
def with_weights(rival: nn.Module, weights: list[Tensor]) -> nn.Module:
    """Copy the weights into the rival, as float64."""
    for parameter, weight in zip(rival.parameters(), weights, strict=True):
        parameter.copy_(weight)
    return rival.double()


@pytest.mark.parametrize(
    ("rival", "mixer"),
    [
        ("torch SDPA", "attention"),
        ("naive softmax", "attention"),
        ("naive linear", "linear"),
        ("naive retention", "retnet"),
    ],
)
def test_naive_forms_equal_the_mixers(rival: str, mixer: str) -> None:
    torch.manual_seed(0)
    alone = Alone(mixer, DIM, HEADS, LENGTH).double()
    naive = with_weights(peers(DIM, HEADS, LENGTH)[rival], list(alone.parameters()))
    x = torch.randn(1, LENGTH, DIM, dtype=torch.double)
    close(naive(x), alone(x), 1e-6)  # angles and decays are float32


def test_peers_have_as_many_parameters_as_the_mixers() -> None:
    count = {n: sum(p.numel() for p in m.parameters()) for n, m in peers(64, 4, 16).items()}
    for rival, mixer in (("mambapy", "mamba"), ("xlstm parallel", "mlstm")):
        size = sum(p.numel() for p in Alone(mixer, 64, 4, 16).parameters())
        assert count[rival] == size


def test_projections_alone_have_gradients_in_every_projection() -> None:
    rival = peers(DIM, HEADS, LENGTH)["projections alone"]
    assert isinstance(rival, Scores)
    rival(torch.randn(1, 4, DIM)).sum().backward()
    assert all(p.grad is not None for p in rival.parameters())


def test_peak_is_the_largest_memory_at_one_time() -> None:
    start = torch.zeros(2**18)  # 1 MiB

    def work() -> None:
        once = start + 1
        twice = once + 1  # 2 MiB
        del once
        (twice + 1).sum()  # 2 MiB and one number

    assert 2 * 2**20 <= peak(work) < 2 * 2**20 + 4096


def test_exponent_is_the_slope() -> None:
    cost = {512: 7.0, 1024: 3.0, 2048: 12.0, 4096: 48.0}
    assert exponent(cost) == pytest.approx(2)  # 512 is left out
