"""Schedules: warm-up, then cosine, linear, constant, or stable and decay (SPEC T2)."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from chimera.optim.schedule import warmup_constant, warmup_cosine, warmup_linear, wsd


@pytest.mark.parametrize("schedule", [warmup_cosine, warmup_linear, warmup_constant, wsd])
def test_every_schedule_rises_linearly_and_then_never(
    schedule: Callable[..., Callable[[int], float]],
) -> None:
    factor = schedule(100, 0.1)
    assert [factor(s) for s in range(10)] == pytest.approx([(s + 1) / 10 for s in range(10)])
    assert factor(10) == 1.0
    assert all(factor(s) >= factor(s + 1) for s in range(10, 100))
    assert schedule(10, 0.0)(0) == 1.0


def test_cosine() -> None:
    factor = warmup_cosine(100, 0.1, 0.2)
    assert factor(55) == pytest.approx(0.2 + 0.8 * 0.5 * (1 + math.cos(math.pi / 2)))
    assert factor(100) == factor(1000) == pytest.approx(0.2)


def test_linear() -> None:
    factor = warmup_linear(100, 0.2, 0.5)
    assert factor(60) == pytest.approx(0.75)
    assert factor(100) == factor(1000) == pytest.approx(0.5)


def test_constant() -> None:
    assert warmup_constant(100, 0.2)(1000) == 1.0


def test_warmup_stable_decay() -> None:
    factor = wsd(100, 0.1, 0.5, decay=0.2)
    assert [factor(s) for s in (10, 50, 80)] == [1.0, 1.0, 1.0]
    assert factor(90) == pytest.approx(0.75)
    assert factor(100) == factor(1000) == pytest.approx(0.5)


def test_by_default_they_fall_to_zero_and_the_stable_one_in_the_last_tenth() -> None:
    for schedule in (warmup_cosine, warmup_linear, wsd):
        assert schedule(100, 0.1)(100) == pytest.approx(0.0)
    assert [wsd(100, 0.1)(s) for s in (89, 90, 95)] == pytest.approx([1.0, 1.0, 0.5])
