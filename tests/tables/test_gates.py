"""The computed tables show the results of SAIDL Tables 8 and 9."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from chimera.errors import UserError
from chimera.tables import lasso, proximal

UPDATES = ("proximal", "sgd_l1")


@pytest.mark.parametrize("update", UPDATES)
def test_torch_equals_numpy(update: str) -> None:
    start = np.random.default_rng(0).normal(size=8)
    by_torch, by_numpy = proximal.torch_gates(update, start), proximal.numpy_gates(update, start)
    assert np.abs(by_torch - by_numpy).max() <= 1e-12
    p = lasso.problem(3)
    assert np.abs(lasso.by_torch(p, update) - lasso.by_numpy(p, update)).max() <= 1e-12


def test_proximal_gates_are_zero_at_step_67_and_sgd_l1_gates_never() -> None:
    sparse, dense = (proximal.torch_gates(u, np.ones(8)) for u in UPDATES)
    assert proximal.first_all_zero(sparse) == 67
    assert proximal.first_all_zero(dense) is None
    assert np.count_nonzero(dense[-1]) == 8
    assert np.abs(dense[-1]).max() <= 0.015  # SGD-L1 oscillates about zero by at most ηλ


def minimiser(p: lasso.Problem) -> np.ndarray:
    """The minimiser [d] by coordinate descent, independent of both updates."""
    g = np.zeros(lasso.D)
    for _ in range(2000):
        for j in range(lasso.D):
            residual = p.b - p.A @ g + p.A[:, j] * g[j]
            slope = p.A[:, j] @ residual
            g[j] = np.sign(slope) * max(abs(slope) - lasso.L1, 0.0) / (p.A[:, j] @ p.A[:, j])
    return g


def test_the_proximal_update_finds_all_five_zeros_and_sgd_l1_none() -> None:
    p = lasso.problem(lasso.SHOWN)
    sparse, dense = (lasso.by_torch(p, u) for u in UPDATES)
    assert set(np.flatnonzero(sparse == 0)) == set(np.flatnonzero(p.truth == 0))
    assert lasso.zeros_found(p, sparse) == 5
    assert np.count_nonzero(dense == 0) == 0
    assert lasso.loss(p, sparse) <= lasso.loss(p, dense)
    assert lasso.loss(p, dense) == pytest.approx(lasso.loss(p, sparse), rel=5e-3)


@pytest.mark.parametrize("seed", range(lasso.SEEDS))
def test_the_proximal_update_has_the_zeros_of_the_minimiser(seed: int) -> None:
    p = lasso.problem(seed)
    expected, sparse = minimiser(p), lasso.by_torch(p, "proximal")
    assert ((expected == 0) == (sparse == 0)).all()
    assert np.abs(expected - sparse).max() < 0.02


def test_the_commands_print_and_write(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    proximal.main([f"to={tmp_path}"])
    lasso.main([f"to={tmp_path}"])
    assert {f.name for f in tmp_path.iterdir()} == {"proximal.csv", "proximal.png", "lasso.csv"}
    assert "67" in capsys.readouterr().out
    with pytest.raises(UserError, match=r"cannot read 'seed=3'.*lasso \[to=<folder>\]"):
        lasso.main(["seed=3"])
