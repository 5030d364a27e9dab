"""Rows of a table at equal steps, FLOPs and seconds: their steps, command lines and results."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from benchmarks.equal import Options, costs, main, steps_at
from benchmarks.equal_page import COLUMNS, Cost, equalities

from benchmarks import equal
from chimera.config.tables import load
from chimera.errors import UserError
from chimera.paths import home
from tests.report.runs import ENVIRONMENT, make

TABLE = "bitnet_qdyt/norms"
COSTS = {"layernorm": Cost(2e9, 0.5), "qdyt": Cost(4e9, 1.0), "static_tanh": Cost(None, 0.25)}


@pytest.fixture(autouse=True)
def _costs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHIMERA_RUNS", str(tmp_path))
    monkeypatch.setattr(equal, "costs", lambda *_: COSTS)


def test_steps_follow_from_the_budget() -> None:
    options = Options(TABLE, flops=1e10, seconds=3.0)
    assert [steps_at("FLOPs", cost, options) for cost in COSTS.values()] == [5, 2, 0]
    assert [steps_at("seconds", cost, options) for cost in COSTS.values()] == [6, 3, 12]
    assert steps_at("steps", COSTS["qdyt"], options) is None
    assert steps_at("FLOPs", Cost(1e30, None), options) == 1


def test_the_speed_of_a_run_on_a_gpu_is_of_the_gpu() -> None:
    for row, card in (("layernorm", "Card"), ("qdyt", None)):
        make(TABLE, {(row, 0): 9.0}, environment={**ENVIRONMENT, "gpu": card})
    found = costs(load(TABLE), ["scale=smoke"], Options(TABLE, flops=1e10))
    assert found["layernorm"].machine == "Card"
    assert found["qdyt"].machine == "Test CPU"
    assert found["static_tanh"].machine == ""


def test_each_row_has_a_command_and_its_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    make(TABLE, {("layernorm", 0): 9.0, ("qdyt", 0): 8.0}, overrides=("scale=smoke",))
    for row, value, steps in (("layernorm", 8.5, 5), ("qdyt", 7.5, 2)):
        make(TABLE, {(row, 0): value}, overrides=("scale=smoke", f"trainer.max_steps={steps}"))
    assert main([f"table={TABLE}", "scale=smoke", "flops=1e10"]) == {}
    said = capsys.readouterr().out
    assert f"python train.py +{TABLE}=layernorm scale=smoke seed=0\n" in said
    assert f"python train.py +{TABLE}=layernorm scale=smoke trainer.max_steps=5 seed=0\n" in said
    assert f"+{TABLE}=static_tanh scale=smoke trainer.max_steps" not in said
    assert "Equal FLOPs: 1e+10 a row" in said
    assert "Equal seconds" not in said
    folder = home() / "reports" / TABLE / "smoke" / "equal"
    written = (folder / "equal.md").read_text("utf-8")
    assert re.match(r"# .* at equal steps and FLOPs\n", written)
    at_steps, at_flops = written.split("## Equal FLOPs: 1e+10 a row")
    assert "| 9.000 | +1.000 |" in at_steps
    assert "| 8.500 | +1.000 |" in at_flops
    assert "| layernorm | 2 G | 500 | 9.000 | 5 | 8.500 |" in at_steps
    assert "| static_tanh |  | 250 | missing | cost not known |  |" in at_steps
    assert f"`python -m benchmarks equal table={TABLE} scale=smoke flops=1e+10 seed=0`" in at_steps


def page(tmp_path: Path, *lines: str) -> str:
    """The part of docs/results.md of one table by the lines of its equal.csv."""
    folder = tmp_path / TABLE / "results/medium/equal"
    folder.mkdir(parents=True)
    (folder / "equal.csv").write_text("\n".join([",".join(COLUMNS), *lines]))
    return equalities(tmp_path)


def test_results_have_the_order_of_the_rows(tmp_path: Path) -> None:
    said = page(
        tmp_path,
        "steps,layernorm,configured,2e9,0.5,0;1,9.0;10.0",
        "steps,qdyt,configured,4e9,1.0,0;1,8.0;7.0",
        "FLOPs,layernorm,5,2e9,0.5,0;1,6.0;6.2",
        "FLOPs,qdyt,2,4e9,1.0,0;1,8.0;9.0",
    )
    assert "| layernorm | 2 G | 500 | 9.50 ± 0.71 | 5 | 6.10 ± 0.14 |" in said
    assert "Equal steps: `qdyt`, `layernorm`; equal FLOPs: `layernorm`, `qdyt`." in said


def test_fewer_seeds_are_said_and_rows_ordered_over_those_of_all(tmp_path: Path) -> None:
    said = page(
        tmp_path,
        "steps,layernorm,configured,2e9,0.5,0;1,9.0;5.0",
        "steps,qdyt,configured,4e9,1.0,0;1,8.0;7.0",
        "seconds,layernorm,5,2e9,0.5,0;1,9.0;5.0",
        "seconds,qdyt,2,4e9,1.0,0,8.0",
        "seconds,static_tanh,9,2e9,1.0,,",
    )
    assert "| 5 | 7.0 ± 2.8 |" in said
    assert "| 2 | 8.000 (1 seed) |" in said
    assert "Equal steps: `layernorm`, `qdyt`; equal seconds (1 seed): `qdyt`, `layernorm`." in said


def test_no_budget_is_one_line() -> None:
    with pytest.raises(UserError, match="a budget of each row"):
        main([f"table={TABLE}", "scale=smoke"])
