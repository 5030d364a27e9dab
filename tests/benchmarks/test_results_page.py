"""docs/results.md: every figure is computed from a committed report, every cost from estimates."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks import figures, not_run, results_page
from chimera.config.tables import tables
from chimera.paths import EXPERIMENTS, ROOT

HEAD = "row,title,published,mean,seeds,values,state"


def test_no_figure_is_written_by_hand() -> None:
    """What is outside the generated parts has numbers of tables and settings only."""
    text = (ROOT / "docs/results.md").read_text(encoding="utf-8")
    by_hand = figures.MARKED.sub("", text).replace("Mamba-2", "")
    assert set(re.findall(r"\d[\d.,]*\d|\d", re.sub(r"\]\(.*?\)", "", by_hand))) <= {
        "16",
        "6",
        "0.02",
    }


def test_the_page_speaks_of_every_table() -> None:
    """A table has a report at the scale of the estimates, or a line with its cost and command."""
    page = (ROOT / "docs/results.md").read_text(encoding="utf-8")
    for table in tables():
        done = (EXPERIMENTS / table / "results" / not_run.SCALE / "report.csv").is_file()
        assert done or f"`{not_run.command(table)}`" in page, table


def test_figures_are_computed(tmp_path: Path) -> None:
    folder = tmp_path / "bitnet_qdyt/norms/results/small"
    folder.mkdir(parents=True)
    rows = [
        "layernorm,LayerNorm,23.1,20,0;1,19.0;21.0,done;done",
        "static_tanh,static tanh,21.2,30,0;1,29.0;31.0,done;done",
        "qdyt,QDyT,19.3,25,0;1,24.0;26.5,done;done",
    ]
    (folder / "report.csv").write_text("\n".join([HEAD, *rows]))
    found = results_page.report("bitnet_qdyt/norms", tmp_path)
    assert found is not None
    assert [row["row"] for row in found.done] == ["layernorm", "qdyt", "static_tanh"]
    assert results_page.order(found).startswith("1 of 3 pairs (0 significantly); 2 against it")
    line = results_page._line(found)
    assert line[2] == "one for all rows"
    # p is 0.030, times the two rows that are compared with the reference
    assert line[3:6] == ["`layernorm` 20.0 ± 1.4", "`qdyt` 25.2 ± 1.8", "-5.25 ± 0.35, p = 0.061"]


@pytest.mark.parametrize("table", ["saidl/positions", "ours/multilingual"])
def test_commands_have_their_data(table: str) -> None:
    command = not_run.command(table)
    assert f"+{table.replace('/', '=')} scale=medium seed=0,1,2 workers=2" in command
    assert command.startswith("CHIMERA_ENGLISH=") == (table == "ours/multilingual")


def test_a_reference_that_is_the_best_row_is_printed_once(tmp_path: Path) -> None:
    folder = tmp_path / "titan/efficiency/results/small"
    folder.mkdir(parents=True)
    rows = ["full,whole,,20,0;1,29.0;31.0,done;done", "fp16,FP16,,10,0;1,9.0;11.0,done;done"]
    (folder / "report.csv").write_text("\n".join([HEAD, *rows]))
    found = results_page.report("titan/efficiency", tmp_path)
    assert found is not None
    line = results_page._line(found)
    assert line[2] == "–"  # of a speed
    assert line[3:6] == ["`full` 30.0 ± 1.4 (ours)", "the best row", ""]
