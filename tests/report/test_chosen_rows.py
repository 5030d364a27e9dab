"""A report of some rows of a table (`rows=`)."""

from __future__ import annotations

import csv
import shlex
from pathlib import Path

import pytest

from chimera.cli.report import main
from chimera.config.tables import load
from chimera.report import markdown, provenance
from chimera.report.table_results import read_results
from tests.report.runs import make

TABLE = "bitnet_qdyt/norms"
VALUES = {("layernorm", 90.0), ("static_tanh", 300.0), ("qdyt", 80.0)}


@pytest.fixture(autouse=True)
def _runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHIMERA_RUNS", str(tmp_path / "runs"))
    make(TABLE, {(row, seed): value + seed for row, value in VALUES for seed in (0, 1, 2)})


def test_the_report_has_these_rows_and_says_which_it_leaves_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["scale=smoke", "seed=0,1,2", "rows=static_tanh,layernorm"]
    assert main([TABLE, *words, f"out={tmp_path / 'out'}"]) == 0
    shown = capsys.readouterr().out
    assert "static_tanh" in shown
    with (tmp_path / "out/report.csv").open(encoding="utf-8", newline="") as opened:
        rows = {line["row"] for line in csv.DictReader(opened)}
    assert {"layernorm", "static_tanh"} == {row for row in rows if row != "unigram"}
    report = (tmp_path / "out/report.md").read_text(encoding="utf-8")
    others = len(load(TABLE).rows)
    assert f"2 of the table's {others} rows (`rows=`)" in report
    assert "Not shown: `qdyt`" in report
    latex = (tmp_path / "out/report.tex").read_text(encoding="utf-8")
    assert f" 2 of the table's {others} rows.}}" in latex
    assert "Missing runs" not in report


def test_without_the_tables_reference_the_first_one_named_is_compared_with() -> None:
    table = load(TABLE)
    in_order = [row.name for row in table.rows if row.name in dict(VALUES)]
    chosen = [row for row in reversed(in_order) if row != table.reference]
    found = read_results(table.only(chosen), ["scale=smoke"], [0, 1, 2])
    second, first = found.lines  # in the table's order
    assert [first.name, second.name] == chosen
    assert first.difference is None
    assert second.difference is not None
    assert second.difference.mean == dict(VALUES)[second.name] - dict(VALUES)[first.name]
    said = f"The reference here is `{first.name}`; the table's, `{table.reference}`, is not shown."
    assert said in markdown.report(found)
    assert f"rows={','.join(chosen)}" in provenance.report_command(found)

    with_its_own = table.only([chosen[0], table.reference])
    assert with_its_own.reference == table.reference
    assert "The reference here" not in markdown.report(
        read_results(with_its_own, ["scale=smoke"], [0])
    )


def test_its_commands_repeat_these_rows_only() -> None:
    chosen = load(TABLE).only(["static_tanh", "layernorm"])
    found = read_results(chosen, ["scale=smoke"], [0, 1])
    command = shlex.split(provenance.report_command(found))
    assert command[:3] == ["chimera", "report", TABLE]
    assert command[3:] == ["rows=static_tanh,layernorm", "scale=smoke", "seed=0,1"]
    (word,) = [word for word in shlex.split(provenance.train_command(found)) if TABLE in word]
    assert set(word.partition("=")[2].split(",")) == {"static_tanh", "layernorm"}
    whole = read_results(load(TABLE), ["scale=smoke"], [0])
    assert "+bitnet_qdyt=norms" in provenance.train_command(whole)
    assert "rows=" not in provenance.report_command(whole)


def test_all_rows_in_any_order_are_the_table() -> None:
    table = load(TABLE)
    assert table.only([]) is table
    assert table.only([row.name for row in reversed(table.rows)]) is table


def test_a_row_misspelt_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert main([TABLE, "scale=smoke", "rows=layernom", f"out={out}"]) == 2
    said = capsys.readouterr().err
    assert "rows=layernom is not known; choose one of" in said
    assert "did you mean 'layernorm'?" in said
    assert said.count("\n") == 1
    assert not out.exists()


def test_commands_set_the_variables_that_rows_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHIMERA_ENGLISH", "my texts/en.txt")
    monkeypatch.setenv("CHIMERA_SPANISH", "/home/me/es.txt")
    monkeypatch.delenv("CHIMERA_SPANISH_VALID", raising=False)
    found = read_results("ours/multilingual", ["scale=smoke"], [0])
    variables = "CHIMERA_ENGLISH='my texts/en.txt' CHIMERA_SPANISH=path/to/es.txt"
    train, report = provenance.commands(found)
    assert train.startswith(f"{variables} python ")
    assert report.startswith(f"{variables} chimera report ")
    train, report = provenance.commands(read_results(TABLE, ["scale=smoke"], [0]))
    assert train.startswith("python ")
    assert report.startswith("chimera report ")
