"""The counted costs have the orders of TITAN Table 7."""

from __future__ import annotations

from itertools import pairwise

import pytest

from chimera.tables import complexity
from chimera.tables.complexity import MIXERS, numbers, of_a_token, operations

WORDS = {name: words for name, (words, *_) in MIXERS.items()}
SQUARE = {"retention, parallel", "ODE, K = 2", "attention"}


@pytest.fixture(autouse=True)
def _narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(complexity, "WIDTH", 64)


@pytest.mark.parametrize("name", MIXERS)
def test_the_length_counts_once_or_twice(name: str) -> None:
    for train in (False, True):
        half, whole = (operations(WORDS[name], n, train=train) for n in (1024, 2048))
        order = whole / half
        assert order > 3.5 if name in SQUARE else order < 2.1


@pytest.mark.parametrize("name", MIXERS)
def test_a_token_costs_the_same_where_the_state_is_of_fixed_size(name: str) -> None:
    found = [of_a_token(WORDS[name], n) for n in (128, 256, 512)]
    for (before, size), (after, larger) in pairwise(found):
        grows = name in ("ODE, K = 2", "attention")
        assert (after > before) == (larger > size) == grows
        if grows:
            assert larger / size == pytest.approx(2, rel=0.01)


def test_the_steps_of_the_ode_count_once() -> None:
    one, two, four = (
        operations(["mixer=ode", f"mixer.steps={k}"], 64, train=False) for k in (1, 2, 4)
    )
    assert two / one == pytest.approx(2, rel=0.01)
    assert four / one == pytest.approx(4, rel=0.01)


def test_numbers_of_nested_states_add_up() -> None:
    import torch

    assert numbers((torch.zeros(2, 3), (torch.zeros(4), None), 5)) == 10
