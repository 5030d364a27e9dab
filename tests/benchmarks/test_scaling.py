"""The fit of losses against FLOPs finds the exponent that the losses were made with."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import scaling
from chimera.report.cells import Cell


def cell(row: str, seed: int, per_token: float, loss: float | None) -> Cell:
    config = {
        "data": {"batch_size": 2, "seq_len": 8},
        "trainer": {"accumulate_grad_batches": 2},
    }
    record = {"flops": {"training": per_token}, "steps": 10}
    return Cell(row, seed, "done", "", loss, Path(), config, record, {})


def test_the_exponent_is_found_and_incomplete_seeds_are_left_out() -> None:
    assert scaling.flops(cell("x_1", 0, 5.0, 1.0)) == 5.0 * 10 * 4 * 8
    cells = []
    for seed, b in enumerate((0.10, 0.12)):
        for size, per_token in enumerate((1e3, 1e4, 1e5, 1e6), 1):
            loss = 9.0 * (per_token * 320) ** -b
            cells.append(cell(f"gated_delta_{size}", seed, per_token, loss))
    cells += [cell("mamba2_1", 0, 1e3, 5.0), cell("mamba2_2", 0, 1e4, None)]
    found = scaling.exponents(cells)
    assert set(found) == {"gated_delta"}
    of = found["gated_delta"]
    assert of["b"] == pytest.approx(0.11)
    assert of["a"] == pytest.approx(9.0)
    low, high = of["interval"]
    assert low == pytest.approx(0.11 - 12.706 * 0.01, abs=1e-4)
    assert high == pytest.approx(0.11 + 12.706 * 0.01, abs=1e-4)
