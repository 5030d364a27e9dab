"""Scores on Spanish tasks stand above those that need no network."""

from __future__ import annotations

from pathlib import Path

from benchmarks import spanish
from tests.benchmarks.test_ratios import HEAD, cells


def test_rows_best_first_then_predictors_without_a_network(tmp_path: Path) -> None:
    folder = tmp_path / "titan/spanish/results/medium"
    folder.mkdir(parents=True)
    lines = [
        HEAD,
        "beto_stsb,BETO,,,,,missing",
        "transformer_stsb,Transformer,,0.11,0;1,0.12;0.10,done",
        "titan_bert_ultra_stsb,TITAN,,0.21,0;1,0.20;0.22,done",
        "constant,Constant prediction,,0.0,,,baseline",
        "overlap,Tokens in common,,0.6986,,,baseline",
    ]
    (folder / "report.csv").write_text("\n".join(lines))
    found = cells(spanish.page(tmp_path))
    assert found[0][:3] == ["row", "val/score", "seeds"]
    assert [line[0] for line in found[2:]] == [
        "TITAN (`titan_bert_ultra_stsb`)",
        "Transformer (`transformer_stsb`)",
        "*Tokens in common*",
        "*Constant prediction*",
    ]
    assert found[2][1:3] == ["0.210 ± 0.014", "2"]
    assert found[2][3].startswith("+0.100 ± 0.028 (-0.154 to +0.354), p = 0.13")
    assert [line[3] for line in found[3:]] == ["", "", ""]
    assert [line[1] for line in found[4:]] == ["0.699", "0"]
    assert spanish.page(tmp_path / "nothing") == ""
