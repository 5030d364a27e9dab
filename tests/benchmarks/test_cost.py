"""Rivals compute what they are compared for; memory and exponents are what they are called."""

from __future__ import annotations

import pytest
import torch
from benchmarks.aims import reached
from benchmarks.memory import peak
from benchmarks.mixers import exponent
from benchmarks.parts import Alone, composite, names
from benchmarks.peers import Scores, peers
from torch import Tensor, nn

from tests.kit import close

DIM, HEADS, LENGTH = 32, 4, 48


@torch.no_grad()
def given(rival: nn.Module, weights: list[Tensor]) -> nn.Module:
    """The rival with these weights."""
    for own, weight in zip(rival.parameters(), weights, strict=True):
        own.copy_(weight)
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
def test_naive_forms_give_the_mixers_numbers(rival: str, mixer: str) -> None:
    torch.manual_seed(0)
    ours = Alone(mixer, DIM, HEADS, LENGTH).double()
    theirs = given(peers(DIM, HEADS, LENGTH)[rival], list(ours.parameters()))
    x = torch.randn(1, LENGTH, DIM, dtype=torch.double)
    close(theirs(x), ours(x), 1e-6)  # float32 angles and decays in between


def test_peers_are_of_the_mixers_size() -> None:
    count = {n: sum(p.numel() for p in m.parameters()) for n, m in peers(64, 4, 16).items()}
    for rival, mixer in (("mambapy", "mamba"), ("xlstm parallel", "mlstm")):
        ours = sum(p.numel() for p in Alone(mixer, 64, 4, 16).parameters())
        assert count[rival] == ours


def test_projections_alone_reach_every_projection() -> None:
    rival = peers(DIM, HEADS, LENGTH)["projections alone"]
    assert isinstance(rival, Scores)
    rival(torch.randn(1, 4, DIM)).sum().backward()
    assert all(p.grad is not None for p in rival.parameters())


def test_peak_counts_what_is_held_at_one_time() -> None:
    start = torch.zeros(2**18)  # 1 MiB

    def work() -> None:
        once = start + 1
        twice = once + 1  # two held
        del once
        (twice + 1).sum()  # two again, and a number

    assert 2 * 2**20 <= peak(work) < 2 * 2**20 + 4096


def test_exponent_is_the_slope() -> None:
    cost = {512: 7.0, 1024: 3.0, 2048: 12.0, 4096: 48.0}
    assert exponent(cost) == pytest.approx(2)  # 512 is left out


def test_aims_say_met_or_not() -> None:
    everybody = [n for n in names() if not composite(n)] + list(peers(DIM, HEADS, LENGTH))
    seconds = {n: {t: float(t) for t in (2048, 4096, 8192)} for n in everybody}
    seconds["projections alone"] = dict.fromkeys((2048, 4096, 8192), 1.0)
    seconds["naive softmax"][4096] *= 30
    seconds["mamba"][8192] *= 1.2
    verdicts = {aim.what: aim for aim in reached(seconds)}
    assert verdicts["`sparse_block` against naive softmax, 4096 tokens"].met
    assert not verdicts["`mlstm` against xlstm parallel, 4096 tokens"].met
    flat = {what: aim.met for what, aim in verdicts.items() if "growth" in what}
    assert [what for what, met in flat.items() if not met] == [
        "`mamba`, growth of time per token, 2048 → 8192"
    ]
