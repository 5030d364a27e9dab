"""Reports of invented runs: numbers, missing runs, origin, equal output for equal runs."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from chimera.cli.table import report as main
from chimera.config.tables import load
from chimera.paths import ROOT
from chimera.report.table_results import TableResults, read_results
from chimera.report.write import write
from chimera.rundir.directory import process_start
from tests.report.runs import make
from tests.rundir.kit import ENVIRONMENT

TABLE, OVERRIDES, SEEDS = "bitnet_qdyt/norms", ["scale=smoke"], [0, 1, 2]
#: The paper has qdyt < static_tanh < layernorm; here static_tanh is best, significantly.
VALUES = {
    ("layernorm", 0): 431.2,
    ("layernorm", 1): 428.9,
    ("layernorm", 2): 433.5,
    ("static_tanh", 0): 421.2,
    ("static_tanh", 1): 418.9,
    ("static_tanh", 2): 423.6,
    ("qdyt", 0): 425.2,
    ("qdyt", 1): 422.8,
    ("qdyt", 2): 427.7,
}
FORMS = ("png", "svg", "pdf")
FIGURES = [f"{name}.{form}" for name in ("report", "curves", "times") for form in FORMS]
FILES = ("report.md", "report.csv", "report.tex", *FIGURES)


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CHIMERA_RUNS", str(tmp_path / "runs"))
    return tmp_path / "runs"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[TableResults, Path]:
    """The report of a table whose runs are all done."""
    root = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CHIMERA_RUNS", str(root / "runs"))
        make(TABLE, VALUES)
        return write(TABLE, OVERRIDES, SEEDS, root / "out", forms=FORMS), root / "out"


def lines(out: Path) -> dict[str, dict[str, str]]:
    with (out / "report.csv").open(encoding="utf-8") as file:
        return {row["row"]: row for row in csv.DictReader(file) if row["state"] != "baseline"}


def test_published_beside_mean_and_spread(whole: tuple[TableResults, Path]) -> None:
    rows = lines(whole[1])
    published = {p.row: p.value for p in load(TABLE).published if p.column == "val/perplexity"}
    assert {name: float(row["published"]) for name, row in rows.items()} == published
    row = rows["layernorm"]
    assert float(row["mean"]) == pytest.approx(431.2)
    assert float(row["std"]) == pytest.approx(2.3)
    assert (row["n"], row["seeds"], row["state"]) == ("3", "0;1;2", "done;done;done")
    assert (row["parameters"], row["bytes_packed"]) == ("1234567.0", "400000.0")
    assert (row["tokens_per_second"], row["seconds"]) == ("12345.6", "194.0")
    text = (whole[1] / "report.md").read_text(encoding="utf-8")
    assert "| 431.2 ± 2.3 |" in text
    assert "| 1.23 M | 400 kB | 12,346 | 3:14 |" in text


def test_difference_to_the_reference_is_paired(whole: tuple[TableResults, Path]) -> None:
    rows = lines(whole[1])
    assert float(rows["static_tanh"]["difference"]) == pytest.approx(-4.0)
    assert float(rows["static_tanh"]["difference_std"]) == pytest.approx(0.1)
    assert float(rows["static_tanh"]["p"]) < 0.001
    assert float(rows["static_tanh"]["p_corrected"]) == 2 * float(rows["static_tanh"]["p"])
    assert float(rows["static_tanh"]["low"]) == pytest.approx(-4.248, abs=1e-3)
    text = (whole[1] / "report.md").read_text(encoding="utf-8")
    assert "| -4.000 ± 0.100 | -4.248 to -3.752 | <0.001 |" in text
    assert "With 3 seeds, differences below about 0.46 (" in text
    assert rows[load(TABLE).reference]["difference"] == ""


def test_an_inverted_pair_is_named(whole: tuple[TableResults, Path]) -> None:
    against = [pair for pair in whole[0].pairs if not pair.agrees]
    assert [(pair.first.name, pair.second.name) for pair in against] == [("qdyt", "static_tanh")]
    text = (whole[1] / "report.md").read_text(encoding="utf-8")
    assert "Our order agrees on 2 (2 significantly, p < 0.05" in text
    (pair,) = [line for line in text.splitlines() if line.startswith("- The paper has")]
    assert pair.startswith(
        "- The paper has `qdyt` (19.3) ahead of `static_tanh` (21.2); here `qdyt`"
    )
    assert pair.endswith(": significant, p <0.001.")
    assert "not significant" not in pair


def test_scale_data_origin_and_commands_are_in_the_text(whole: tuple[TableResults, Path]) -> None:
    text = (whole[1] / "report.md").read_text(encoding="utf-8")
    table = load(TABLE)
    assert table.source in text
    assert "| data | pydocs |" in text
    assert "| *Unigram model, no network* |  | 622.2 ± 0 |" in text
    assert "Seconds on a CPU" in text  # first comment of conf/scale/smoke.yaml
    assert "Trained on pydocs: 10 documents, 1,000 bytes, 300 tokens." in text
    assert f"- code {'a' * 40}: 9 runs" in text
    assert "- machine Test CPU, 2 cores, no GPU" in text
    assert "python train.py -m +bitnet_qdyt=norms scale=smoke seed=0,1,2" in text
    assert "chimera report bitnet_qdyt/norms scale=smoke seed=0,1,2" in text
    assert "| `norm` | layernorm | static_tanh | qdyt |" in text


def test_latex_is_escaped_and_rectangular(whole: tuple[TableResults, Path]) -> None:
    text = (whole[1] / "report.tex").read_text(encoding="utf-8")
    inside = text.partition("\\toprule")[2].partition("\\bottomrule")[0]
    rows = [line for line in inside.splitlines() if line.endswith("\\\\")]
    assert len(rows) == 5  # head, three rows, unigram
    assert len({row.count("&") for row in rows}) == 1
    assert "static\\_tanh" in text
    assert "$\\pm$" in text


def test_the_same_runs_give_the_same_files(
    whole: tuple[TableResults, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHIMERA_RUNS", str(whole[1].parent / "runs"))
    write(TABLE, OVERRIDES, SEEDS, tmp_path, forms=FORMS)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(FILES)
    for name in FILES:
        assert (tmp_path / name).read_bytes() == (whole[1] / name).read_bytes(), name


def test_an_empty_table_is_all_missing(runs: Path, tmp_path: Path) -> None:
    summary = write(TABLE, OVERRIDES, [0], tmp_path / "out")
    assert [cell.state for cell in summary.cells] == ["missing"] * 3
    text = (tmp_path / "out/report.md").read_text(encoding="utf-8")
    assert text.count("| missing |") >= 3
    assert "3 of 3 runs have no result:" in text
    assert not runs.exists()  # a report starts no run


def test_runs_that_are_not_done_have_a_reason(runs: Path, tmp_path: Path) -> None:
    alive = {"pid": os.getpid(), "process": process_start(os.getpid()), "host": os.uname().nodename}
    dead = {**alive, "process": "0"}
    progress = {"step": 3, "max_steps": 12}
    states: dict[tuple[str, int], dict[str, Any]] = {
        ("layernorm", 0): {"state": "FAILED", "why": "NotFiniteError: loss is nan\nat step 3"},
        ("layernorm", 1): {"state": "RUNNING", **alive, **progress},
        ("static_tanh", 0): {"state": "RUNNING", **dead, **progress},
        ("static_tanh", 1): {"state": "STOPPED", "why": "stopped at step 3, saved in x"},
    }
    make(TABLE, {("qdyt", 0): 9.0, ("qdyt", 1): 8.0}, states=states)
    summary = write(TABLE, OVERRIDES, SEEDS, tmp_path / "out")
    text = (tmp_path / "out/report.md").read_text(encoding="utf-8")
    assert "- `layernorm`, seed 0: failed: NotFiniteError: loss is nan at step 3" in text
    assert "- `layernorm`, seed 1: running: step 3 of 12" in text
    assert "- `static_tanh`, seed 0: cut off: step 3 of 12" in text
    assert "- `static_tanh`, seed 1: stopped: stopped at step 3" in text
    assert "| 1 failed, 1 running, 1 missing |" in text
    assert "| 8.50 ± 0.71 (2 of 3 seeds; 1 missing) |" in text
    assert "No two rows that the paper ranks have a common finished seed yet." in text
    assert summary.lines[0].ours is None


def test_a_number_that_is_not_finite_is_no_result(runs: Path) -> None:
    make(TABLE, {("qdyt", 0): float("nan")})
    run = {cell.row: cell for cell in read_results(TABLE, OVERRIDES, [0]).cells}["qdyt"]
    assert (run.state, run.value) == ("failed", None)
    assert "no finite val/perplexity" in run.why


@pytest.mark.parametrize(
    ("file", "content", "why"),
    [
        ("run.json", "{", "cannot be read"),
        ("run.json", '{"metrics": {"val/perplexity": 1.0}, "data": []}', "has no data"),
        ("run.json", '{"metrics": [1]}', "has no metrics"),
        ("status.json", "[]", "no mapping"),
        ("status.json", '{"state": "STOPPED", "max_steps": 12}', ""),
        ("steps.csv", "a,b\n1,2\n", ""),
    ],
)
def test_a_damaged_run_hides_no_other(
    file: str, content: str, why: str, runs: Path, tmp_path: Path
) -> None:
    make(TABLE, {("qdyt", 0): 4.0, ("layernorm", 0): 5.0})
    before = {cell.row: cell.directory for cell in read_results(TABLE, OVERRIDES, [0]).cells}
    (before["qdyt"] / file).write_text(content)
    results = write(TABLE, OVERRIDES, [0], tmp_path / "out")
    (bad,) = [cell for cell in results.cells if cell.row == "qdyt"]
    assert why in bad.why
    assert bad.state == ("done" if file == "steps.csv" else "stopped" if not why else "failed")
    assert [line.values for line in results.lines if line.name == "layernorm"] == [{0: 5.0}]


def test_several_commits_are_all_listed(runs: Path, tmp_path: Path) -> None:
    make(TABLE, {("qdyt", 0): 9.0})
    other = {**ENVIRONMENT, "git": {"commit": "b" * 40, "changed": True}, "cpus": 8}
    make(TABLE, {("layernorm", 0): 8.0}, environment=other)
    write(TABLE, OVERRIDES, [0], tmp_path / "out")
    text = (tmp_path / "out/report.md").read_text(encoding="utf-8")
    assert f"- code {'a' * 40}: 1 runs" in text
    assert f"- code {'b' * 40} with changes not committed: 1 runs" in text
    assert "8 cores" in text
    assert "one seed, no test" in text


def test_the_command_line(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(TABLE, VALUES)
    out = tmp_path / "out"
    assert main([TABLE, "scale=smoke", "seed=0,1,2", f"out={out}", "forms=svg"]) == 0
    assert "431.2 ± 2.3" in capsys.readouterr().out
    assert sorted(path.stem for path in out.glob("*.svg")) == ["curves", "report", "times"]
    assert not list(out.glob("*.p*"))


def test_the_report_command_does_not_import_torch() -> None:
    code = "import sys, chimera.cli.table, chimera.report.write; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
