"""Each part of TITAN is compared with the model that lacks it, seed by seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from benchmarks.equal_page import COLUMNS
from benchmarks.results_page import Report

from benchmarks import titan
from tests.benchmarks.kit import report


def test_a_part_lowers_perplexity_raises_it_or_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = {
        "full": [100.0, 102.0, 101.0],
        "single_mixer": [200.0, 205.0, 201.0],
        "fp16": [50.0, 51.5, 50.5],
        "dense_ffn": [90.0, 115.0, 101.0],
    }
    text = titan.page(report(tmp_path, titan.TABLE, rows, {"unigram": 500.0}))
    assert text.startswith("The whole model ends with a validation perplexity of 101.0 ± 1.0")
    assert "(3 seeds), a unigram model with 500.0" in text
    lines = {
        name: f"| {part}, instead of {other} | " for name, (part, other) in titan.PARTS.items()
    }
    single = "`single_mixer` 202.0 ± 2.6 | 0.50 × (0.49 to 0.51) | lowers it | 0.5 ×"
    assert f"{lines['single_mixer']}{single}" in text
    fp16 = "`fp16` 50.67 ± 0.76 | 1.99 × (1.97 to 2.02) | **raises it** | 0.3 ×"
    assert f"{lines['fp16']}{fp16}" in text
    assert "| open | 0.2 ×" in next(li for li in text.splitlines() if lines["dense_ffn"] in li)
    assert lines["non_recursive"] not in text
    monkeypatch.setattr(Report, "own_rates", frozenset(rows))
    assert "[medium, 3 seeds, own rates]" in titan.sentence(tmp_path)
    monkeypatch.setattr(Report, "own_rates", frozenset(rows) - {"fp16"})
    said = titan.sentence(tmp_path)
    assert "[medium, 3 seeds, one learning rate]" in said
    assert said.index("ternary weights") < said.index("four experts") < said.index("six mixers")
    assert "ternary weights in place of full precision 1.99 × (1.97 to 2.02);" in said


def test_titan_stands_beside_other_encoders(tmp_path: Path) -> None:
    rows = {
        titan.TITAN: [100.0, 102.0, 101.0],
        "transformer": [200.0, 205.0, 201.0],
        "transformer_rope": [50.0, 51.5, 50.5],
        "openelm_like": [90.0, 115.0, 101.0],
    }
    folder = report(tmp_path, titan.OTHERS, rows, {"unigram": 500.0})
    text = titan.beside(folder, titan.OTHERS, titan.TITAN)
    assert text.startswith("TITAN ends with a validation perplexity of 101.0 ± 1.0 ([medium](")
    lines = {line.split("`")[1]: line for line in text.splitlines() if "`" in line}
    assert list(lines) == ["transformer_rope", "openelm_like", "transformer"]
    assert "| 0.50 × (0.49 to 0.51) | TITAN's is lower |" in lines["transformer"]
    assert "| 1.99 × (1.97 to 2.02) | **TITAN's is higher** |" in lines["transformer_rope"]
    assert "| open |" in lines["openelm_like"]
    assert titan.sentence(tmp_path) == ""  # of the parts there is no report
    report(tmp_path, titan.TABLE, {"full": rows[titan.TITAN], "fp16": rows["transformer_rope"]}, {})
    said = titan.sentence(tmp_path)
    assert "with rotated positions: 1.99 × (1.97 to 2.02), for 0.3 times the FLOPs ([" in said


def equal(
    folder: Path, table: str, values: Mapping[str, Sequence[float]], more: Sequence[str] = ()
) -> None:
    """Write equal.csv of a table, with other values at equal steps."""
    file = folder / table / "results/medium/equal/equal.csv"
    file.parent.mkdir()
    lines = [
        f"{equality},{row},9,2e9,0.5,0;1;2,{';'.join(str(value + extra) for value in ours)}"
        for equality, extra in (("steps", 7.0), ("FLOPs", 0.0))
        for row, ours in values.items()
    ]
    file.write_text("\n".join([",".join(COLUMNS), *lines, *more]))


def test_titan_stands_beside_others_at_equal_flops_and_seconds_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = {
        titan.TITAN: [100.0, 102.0, 101.0],
        "transformer_rope": [200.0, 205.0, 201.0],
        "openelm_like": [50.0, 51.5, 50.5],
    }
    report(tmp_path, titan.OTHERS, rows, {})
    parts = {"full": rows[titan.TITAN], "fp16": rows["openelm_like"]}
    report(tmp_path, titan.TABLE, parts, {"unigram": 500.0})
    values = {titan.TITAN: [100.0, 102.0, 101.0], "transformer_rope": [50.0, 51.5, 50.5]}
    more = [
        "FLOPs,openelm_like,9,2e9,0.5,,",
        f"seconds,{titan.TITAN},9,2e9,0.5,0;1;2,100.0;102.0;101.0",
        "seconds,transformer_rope,9,2e9,0.5,0;1;2,100.0;102.0;101.0",
    ]
    equal(tmp_path, titan.OTHERS, values, more)
    equal(tmp_path, titan.TABLE, {"full": values[titan.TITAN], "fp16": [200.0, 205.0, 201.0]})
    text = titan.beside(tmp_path, titan.OTHERS, titan.TITAN)
    assert "TITAN's FLOPs ÷ its | at equal FLOPs | at equal seconds |" in text
    shown = {line.split("`")[1]: line for line in text.splitlines() if "`" in line}
    ratios = "| 1.99 × (1.97 to 2.02) | 1.00 × (1.00 to 1.00) |"
    assert shown["transformer_rope"].endswith(f"| 0.5 × {ratios}")
    assert shown["openelm_like"].endswith("| 0.3 × | – | – |")
    said = titan.sentence(tmp_path)
    assert "for 0.5 times the FLOPs, 1.99 × (1.97 to 2.02) at equal FLOPs, 1.00 ×" in said
    part = "ternary weights in place of full precision 1.99 × (1.97 to 2.02)"
    assert f"{part} (at equal FLOPs 0.50 × (0.49 to 0.51))" in said
    assert "| 0.5 × | 0.50 × (0.49 to 0.51) |" in titan.page(tmp_path)
    monkeypatch.setattr(titan, "NEAR", 2.1)  # the whole has half of the FLOPs
    assert f"{part}." in titan.sentence(tmp_path)


def test_without_a_report_nothing_is_said(tmp_path: Path) -> None:
    assert titan.page(tmp_path) == titan.sentence(tmp_path) == ""
    assert titan.beside(tmp_path, titan.PATTERN, titan.STABLE) == ""
