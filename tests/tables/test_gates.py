"""The computed tables show the results of SAIDL Tables 8 and 9."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from chimera.cli.main import main
from chimera.errors import UserError
from chimera.paths import EXPERIMENTS
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


def test_gates_that_land_on_zero_stay_with_sign_0_and_leave_with_1_and_minus_1() -> None:
    landing = without_task(np.ones(8), 0.125, 0.125)
    for update, sign in gates.CONVENTIONS.values():
        path = by_torch(landing, update, sign)
        assert np.array_equal(path, by_numpy(landing, update, sign))
        assert gates.first_all_zero(path) == 64
        moved = -(sign or 0) * 0.125 * 0.125
        assert (path[65] == moved).all()
        assert (path[66:] == 0).all() == (sign is None)
    start = np.random.default_rng(0).normal(size=8)
    paths = [by_torch(without_task(start), "sgd_l1", sign) for sign in (None, 1, -1)]
    assert all(np.array_equal(paths[0], path) for path in paths)


def test_the_committed_report_is_that_of_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Differences of two implementations are rounding, which another processor has otherwise."""
    folder = EXPERIMENTS / "saidl/gates/results"
    monkeypatch.chdir(tmp_path)
    assert main(["table", "saidl/gates", "scale=small", "to=new"]) == 0
    said = capsys.readouterr().out
    assert "saidl/gates is computed without runs, so scale=small changes nothing" in said
    assert "67" in said
    assert {f.name for f in Path("new").iterdir()} == {f.name for f in folder.iterdir()}
    for file in (*folder.glob("*.csv"), folder / "report.md"):
        rounding = re.compile(r"\b\d(\.\d+)?e-(1[5-9]|2\d)\b|\b0e\+00\b")
        written = (Path("new") / file.name).read_text(encoding="utf-8")
        committed = file.read_text(encoding="utf-8")
        assert rounding.sub("0", written) == rounding.sub("0", committed)


def test_arguments_that_are_wrong_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match=r"cannot read 'seeds=3'.*gates \[to=<folder>\]"):
        gates.main(["seeds=3"])
    assert main(["report", "saidl/gates"]) == 2
    assert "saidl/gates is computed, without runs: chimera table saidl/gates" in (
        capsys.readouterr().err
    )
    assert main(["sweep", "+saidl=gates", "seed=0"]) == 2
    assert "saidl/gates is computed, without runs" in capsys.readouterr().err


def test_a_folder_that_cannot_be_is_told_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.delattr(gates, "step_by_step")  # the work
    with pytest.raises(UserError, match=r"to=.*/file is a file; name another"):
        gates.main([f"to={tmp_path}/file/new"])
