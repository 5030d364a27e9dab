"""The computed tables show the results of SAIDL Tables 8 and 9."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from chimera.errors import UserError
from chimera.tables import gates
from chimera.tables.gates import UPDATES, Problem, Update, by_numpy, by_torch, lasso, without_task


@pytest.mark.parametrize("update", UPDATES)
def test_torch_equals_numpy(update: Update) -> None:
    start = np.random.default_rng(0).normal(size=8)
    for problem in (without_task(start), lasso(3)):
        assert np.abs(by_torch(problem, update) - by_numpy(problem, update)).max() <= 1e-12


def test_proximal_gates_are_zero_at_step_67_and_sgd_l1_gates_never() -> None:
    sparse, dense = (by_torch(without_task(np.ones(8)), update) for update in UPDATES)
    assert gates.first_all_zero(sparse) == 67
    assert gates.first_all_zero(dense) is None
    assert np.count_nonzero(dense[-1]) == 8
    assert np.abs(dense[-1]).max() <= 0.015  # SGD-L1 oscillates about zero by at most ηλ


def minimiser(p: Problem) -> np.ndarray:
    """The minimiser [d] by coordinate descent, independent of both updates."""
    g = np.zeros(gates.D)
    for _ in range(2000):
        for j in range(gates.D):
            residual = p.b - p.A @ g + p.A[:, j] * g[j]
            slope = p.A[:, j] @ residual
            g[j] = np.sign(slope) * max(abs(slope) - p.l1, 0.0) / (p.A[:, j] @ p.A[:, j])
    return g


def test_the_proximal_update_finds_all_five_zeros_and_sgd_l1_none() -> None:
    p = lasso(gates.SHOWN)
    sparse, dense = (by_torch(p, update)[-1] for update in UPDATES)
    assert set(np.flatnonzero(sparse == 0)) == set(np.flatnonzero(p.truth == 0))
    assert p.zeros_found(sparse) == 5
    assert np.count_nonzero(dense == 0) == 0
    assert p.loss(sparse) <= p.loss(dense)
    assert p.loss(dense) == pytest.approx(p.loss(sparse), rel=5e-3)


def test_the_proximal_update_has_the_zeros_of_the_minimiser() -> None:
    for p in map(lasso, range(gates.SEEDS)):
        expected, sparse = minimiser(p), by_torch(p, "proximal")[-1]
        assert ((expected == 0) == (sparse == 0)).all()
        assert np.abs(expected - sparse).max() < 0.02


def test_the_command_prints_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gates.main([f"to={tmp_path}"])
    assert {f.name for f in tmp_path.iterdir()} == {"gates.csv", "gates.png", "lasso.csv"}
    assert "67" in capsys.readouterr().out
    with pytest.raises(UserError, match=r"cannot read 'seed=3'.*gates \[to=<folder>\]"):
        gates.main(["seed=3"])
