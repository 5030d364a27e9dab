"""Learning rates chosen for a table's rows: read from its file, under the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from chimera.config.compose import compose
from chimera.config.tables import RATES, Tried, best_rates, load, tables, tried
from chimera.errors import UserError
from tests.config.folders_kit import folders

TABLE = "bitnet_qdyt/norms"
LINES = """scale,row,rate,seed,value
smoke,qdyt,0.001,100,300
smoke,qdyt,0.004,100,200
smoke,layernorm,0.004,100,
smoke,layernorm,0.008,100,250
small,qdyt,0.5,100,100
"""


def rate(*overrides: str) -> float:
    return float(compose(list(overrides)).optim.lr)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    file = tmp_path / f"{TABLE}{RATES}"
    file.parent.mkdir()
    file.write_text(LINES)
    return tmp_path


def test_the_best_rate_is_the_rows_and_loses_to_the_command_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = rate(f"+{TABLE}=qdyt", "scale=smoke")
    with folders(monkeypatch, folder):
        assert rate(f"+{TABLE}=qdyt", "scale=smoke") == 0.004 != usual
        assert rate(f"+{TABLE}=layernorm", "scale=smoke") == 0.008  # 0.004 was not finite
        assert rate(f"+{TABLE}=static_tanh", "scale=smoke") == usual
        assert rate(f"+{TABLE}=qdyt", "scale=small") == 0.5
        assert rate(f"+{TABLE}=qdyt", "scale=smoke", "optim.lr=0.003") == 0.003
        assert rate("preset=bitnet_qdyt_base", "scale=smoke") == usual


def test_a_users_rates_replace_ours_row_by_row(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = {line.row: line for line in tried(TABLE) if line.scale == "medium"}
    assert ours.keys() >= {"qdyt", "layernorm"}
    (folder / f"{TABLE}{RATES}").write_text(LINES + "medium,qdyt,0.5,100,1\n")
    usual = rate(f"+{TABLE}=layernorm", "scale=medium")
    with folders(monkeypatch, folder):
        assert rate(f"+{TABLE}=qdyt", "scale=medium") == 0.5
        assert rate(f"+{TABLE}=layernorm", "scale=medium") == usual


def test_the_best_mean_over_all_seeds_wins_and_the_lowest_rate_at_a_tie() -> None:
    def lines(*of: tuple[float, int, float | None]) -> list[Tried]:
        return [Tried("small", "a", rate, seed, value) for rate, seed, value in of]

    one = lines((0.4, 100, 2.0), (0.1, 100, 2.0), (0.2, 100, 1.0))
    assert best_rates(one, "higher") == {"a": 0.1}
    assert best_rates(one, "lower") == {"a": 0.2}
    assert best_rates(lines((0.1, 100, None)), "lower") == {}
    two = lines((0.1, 100, 3.0), (0.2, 100, 1.0), (0.4, 100, 0.5), (0.1, 101, 3.0), (0.2, 101, 9.0))
    assert best_rates(two, "lower") == {"a": 0.1}  # 0.4 lacks a seed
    assert best_rates(two, "higher") == {"a": 0.2}
    three = [*two, *lines((0.1, 102, None), (0.2, 102, 20.0))]
    assert best_rates(three, "lower") == {"a": 0.2}


def test_an_unreadable_file_is_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / f"{TABLE}{RATES}").write_text("scale,row,rate\nsmoke,qdyt,fast\n")
    with (
        folders(monkeypatch, folder),
        pytest.raises(UserError, match="line 2, rate: input should be"),
    ):
        compose([f"+{TABLE}=qdyt", "scale=smoke"])


def test_rates_of_the_repository_are_of_its_rows() -> None:
    for name in tables():
        lines = tried(name)
        assert {line.row for line in lines} <= {row.name for row in load(name).rows}
        assert len({(line.scale, line.row, line.rate, line.seed) for line in lines}) == len(lines)
