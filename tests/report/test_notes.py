"""What a report says beside its numbers: processors, chosen rows, bounds, commands."""

from __future__ import annotations

import csv
import re
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chimera.callback.log.steps import FIELDS
from chimera.cli.table import report as main
from chimera.config.tables import load
from chimera.report import markdown, notes, provenance
from chimera.report.table_results import read_results
from chimera.report.write import write
from tests.report.runs import Record, make
from tests.rundir.kit import ENVIRONMENT

TABLE, OVERRIDES = "bitnet_qdyt/norms", ["scale=smoke"]
VALUES = {"layernorm": 90.0, "static_tanh": 300.0, "qdyt": 80.0}
ROWS = tuple(VALUES)


@pytest.fixture(autouse=True)
def _runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHIMERA_RUNS", str(tmp_path / "runs"))


def test_times_of_two_processors_are_said_to_be_means_over_both(tmp_path: Path) -> None:
    other = {**ENVIRONMENT, "processor": "Other CPU"}
    make(TABLE, {(row, 0): 9.0 for row in ROWS})
    assert not notes.processors(read_results(TABLE, OVERRIDES, [0]))

    make(TABLE, {(ROWS[0], 1): 8.0}, environment=other)
    said = notes.processors(read_results(TABLE, OVERRIDES, [0, 1]))
    assert "Other CPU (1 run of `layernorm`); Test CPU (3 runs)" in said
    assert "do not compare" in said
    assert "share the seed but not the rounding" in said

    make(TABLE, {(row, 1): 8.0 for row in ROWS[1:]}, environment=other)
    said = notes.processors(read_results(TABLE, OVERRIDES, [0, 1]))
    assert "The runs used 2 processors: Other CPU (seed 1); Test CPU (seed 0)." in said
    assert "do not compare" not in said


def test_memory_is_that_of_a_gpu_and_a_gradients_norm_that_of_the_last_step() -> None:
    def told(row: str, seed: int, record: Record) -> Record:
        return {**record, "peak_memory_gb": 4.0}

    name = "saidl/attention"
    table = load(name)
    assert "grad_norm" in table.also
    make(name, {("standard", 0): 9.0}, told=told)
    make(name, {("linear", 0): 9.0}, told=told, environment={**ENVIRONMENT, "gpu": "Card"})
    lines = {line.name: line for line in read_results(name, OVERRIDES, [0]).lines}
    memory = {row: lines[row].measured("peak_memory_gb") for row in ("standard", "linear")}
    assert memory["standard"] is None  # the process's
    assert memory["linear"] is not None
    assert memory["linear"].mean == 4.0
    (cell,) = lines["standard"].cells
    last = (cell.directory / "steps.csv").read_text(encoding="utf-8").splitlines()[-1].split(",")
    norm = lines["standard"].measured("grad_norm")
    assert norm is not None
    assert norm.mean == float(last[FIELDS.index("grad_norm")])


def test_a_run_on_a_gpu_is_of_the_gpu() -> None:
    with_card = {**ENVIRONMENT, "gpu": "Card"}
    make(TABLE, {(row, 0): 9.0 for row in ROWS}, environment=with_card)
    make(TABLE, {(row, 1): 9.0 for row in ROWS})
    said = notes.processors(read_results(TABLE, OVERRIDES, [0, 1]))
    assert "Card (seed 0); Test CPU (seed 1)" in said
    idle = [*OVERRIDES, "trainer.accelerator=cpu"]
    make(TABLE, {(row, 0): 9.0 for row in ROWS}, overrides=tuple(idle), environment=with_card)
    make(TABLE, {(row, 1): 9.0 for row in ROWS}, overrides=tuple(idle))
    assert not notes.processors(read_results(TABLE, idle, [0, 1]))


def test_a_row_has_a_line_for_each_rule_of_evaluation(tmp_path: Path) -> None:
    values = {("layernorm", 0): 20.0, ("layernorm", 1): 22.0, ("layernorm", 2): 21.0}
    values |= {("qdyt", 0): 25.0, ("qdyt", 1): 26.0, ("qdyt", 2): 27.0}

    def told(row: str, seed: int, made: Record) -> Record:
        other = {"token_mean": {"val/perplexity": 17.0 + 2 * seed}}
        return made | ({"other_rules": other} if row == "qdyt" and seed < 2 else {})

    make(TABLE, values, told=told)
    results = write(TABLE, OVERRIDES, [0, 1], tmp_path / "out")
    lines = {line.name: line for line in results.lines}
    assert list(lines) == ["layernorm", "static_tanh", "qdyt", "qdyt_token_mean"]
    token = lines["qdyt_token_mean"]
    assert token.ours is not None
    assert token.difference is not None
    assert (token.ours.mean, token.difference.mean) == (18.0, -7.5)
    assert set(token.facts.values()) == {None}
    # No paper says which rule it means, so the order of rows is judged by both.
    ranked = {(p.first.name, p.second.name): p.agrees for p in results.pairs}
    assert ranked == {("qdyt", "layernorm"): False, ("qdyt_token_mean", "layernorm"): True}
    assert len(results.cells) == 6  # no runs of their own

    def both(row: str, seed: int, made: Record) -> Record:
        return made | {"other_rules": {"token_mean": {"val/perplexity": 17.0 + 2 * seed}}}

    other = {("static_tanh", 0): 24.0, ("static_tanh", 1): 25.0, ("static_tanh", 2): 23.0}
    make(TABLE, other, told=both)
    named = {(p.first.name, p.second.name) for p in read_results(TABLE, OVERRIDES, [0, 1]).pairs}
    assert ("qdyt", "static_tanh") in named
    assert ("qdyt_token_mean", "static_tanh_token_mean") in named
    assert not named & {("qdyt", "static_tanh_token_mean"), ("qdyt_token_mean", "static_tanh")}
    text = (tmp_path / "out/report.md").read_text(encoding="utf-8")
    assert "QDyT; the same runs evaluated with the token mean (`qdyt_token_mean`) | 19.3 |" in text
    line = read_results(TABLE, OVERRIDES, [0, 1, 2]).lines[-1]
    assert line.result == "18.0 ± 1.4 (2 of 3 seeds; 1 not evaluated)"


def test_settings_past_the_bounds_of_the_scale_are_named() -> None:
    found = read_results(TABLE, [*OVERRIDES, "trainer.max_steps=40"], [0])
    how = "set by the command line or the start model"
    said = f"Beyond the bounds of this scale, {how}: `trainer.max_steps=40` (bound 12)."
    assert notes.past_scale(found) == said


def test_the_model_and_the_data_are_those_of_the_runs() -> None:
    config = {"model": {"name": "/far/llama", "pretrained": True}, "choices": {"data": "instruct"}}
    cells = [
        SimpleNamespace(config={**config, "data": {"path": path}}) for path in ("a.json", None)
    ]
    cells.append(SimpleNamespace(config={**cells[0].config, "model": {"dim": 16}}))
    results: Any = SimpleNamespace(cells=cells)
    start = "The runs begin with path/to/llama and its trained weights; their data are"
    assert notes.begun_with(results) == [f"{start} a.json", f"{start} those of data=instruct"]


@pytest.mark.parametrize(
    ("used", "said"),
    [(["fp32"], "^$"), (["fp16", "fp32"], "up to 1/2048"), (["bf16"] * 2, "bf16: .*1/256")],
)
def test_half_precision_is_named_with_its_error(used: list[str], said: str) -> None:
    results: Any = SimpleNamespace(cells=[SimpleNamespace(config={"precision": p}) for p in used])
    assert re.search(said, notes.in_half(results))


def test_a_report_of_some_rows_says_which_it_leaves_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(TABLE, {(row, seed): VALUES[row] + seed for row in ROWS for seed in (0, 1)})
    words = ["scale=smoke", "seed=0,1", "rows=static_tanh,layernorm"]
    assert main([TABLE, *words, f"out={tmp_path / 'out'}", "forms=png"]) == 0
    assert "static_tanh" in capsys.readouterr().out
    with (tmp_path / "out/report.csv").open(encoding="utf-8", newline="") as opened:
        rows = {line["row"] for line in csv.DictReader(opened)}
    assert {"layernorm", "static_tanh"} == {row for row in rows if row != "unigram"}
    report = (tmp_path / "out/report.md").read_text(encoding="utf-8")
    assert "2 of the table's 3 rows (`rows=`)" in report
    assert "Not shown: `qdyt`" in report
    latex = (tmp_path / "out/report.tex").read_text(encoding="utf-8")
    assert " 2 of the table's 3 rows.}" in latex
    assert "Missing runs" not in report


def test_without_the_tables_reference_the_first_one_named_is_compared_with() -> None:
    make(TABLE, {(row, seed): VALUES[row] + seed for row in ROWS for seed in (0, 1)})
    table = load(TABLE)
    in_order = [row.name for row in table.rows]
    assert table.only([]) is table
    assert table.only(in_order[::-1]) is table
    chosen = [row for row in reversed(in_order) if row != table.reference]
    found = read_results(table.only(chosen), OVERRIDES, [0, 1])
    second, first = found.lines  # in the table's order
    assert [first.name, second.name] == chosen
    assert first.difference is None
    assert second.difference is not None
    assert second.difference.mean == VALUES[second.name] - VALUES[first.name]
    said = f"The reference here is `{first.name}`; the table's, `{table.reference}`, is not shown."
    assert said in markdown.report(found)
    train, report = map(shlex.split, provenance.commands(found))
    assert report[:3] == ["chimera", "report", TABLE]
    assert report[3:] == [f"rows={','.join(chosen)}", "scale=smoke", "seed=0,1"]
    assert f"+{TABLE}={','.join(chosen)}" in train
    with_its_own = table.only([chosen[0], table.reference])
    assert with_its_own.reference == table.reference


def test_commands_set_the_variables_that_rows_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHIMERA_ENGLISH", "my texts/en.txt")
    monkeypatch.setenv("CHIMERA_SPANISH", "/home/me/es.txt")
    monkeypatch.delenv("CHIMERA_SPANISH_VALID", raising=False)
    found = read_results("ours/multilingual", OVERRIDES, [0])
    variables = "CHIMERA_ENGLISH='my texts/en.txt' CHIMERA_SPANISH=path/to/es.txt"
    train, report = provenance.commands(found)
    assert train.startswith(f"{variables} python ")
    assert report.startswith(f"{variables} chimera report ")
    train, report = provenance.commands(read_results(TABLE, OVERRIDES, [0]))
    assert "+bitnet_qdyt=norms" in train.split()
    assert report == f"chimera report {TABLE} scale=smoke seed=0"


def test_the_run_that_rows_start_from_is_named_once(tmp_path: Path) -> None:
    def commands(*configs: dict[str, Any]) -> list[str]:
        cells: Any = SimpleNamespace(cells=[SimpleNamespace(config=config) for config in configs])
        return provenance.start_commands(cells)

    body = tmp_path / "runs/body-12345678"
    body.mkdir(parents=True)
    (body / "overrides.txt").write_text("scale=small\n'data.sources=[{path: a b}]'\nname=body\n")
    start = {"init_from": "runs/body-12345678", "init_run": "12345678"}
    (only,) = commands(start, start, {"init_run": None}, {})
    assert only.endswith("train.py scale=small 'data.sources=[{path: a b}]' name=body")
    assert commands({"init_from": "row:saidl/backbone/mlm", "init_run": "12345678"}) == []
    assert commands({"init_from": "away", "init_run": "87654321"}) == []
