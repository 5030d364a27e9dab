"""Ratios to a table's reference row are read off a report, beside the paper's where it has some."""

from __future__ import annotations

from pathlib import Path

from benchmarks import ratios

HEAD = "row,title,published,mean,seeds,values,state"


def made(folder: Path, table: str, rows: dict[str, tuple[str, list[float]]]) -> Path:
    place = folder / table / "results" / "medium"
    place.mkdir(parents=True)
    lines = [HEAD]
    for name, (published, values) in rows.items():
        seeds = ";".join(map(str, range(len(values))))
        mean = sum(values) / len(values)
        lines.append(f"{name},{name},{published},{mean},{seeds},{';'.join(map(str, values))},done")
    (place / "report.csv").write_text("\n".join(lines))
    return folder


def cells(text: str) -> list[list[str]]:
    return [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in text.splitlines()
        if line.startswith("|")
    ]


def test_a_row_stands_beside_the_papers_ratio_fastest_first(tmp_path: Path) -> None:
    rows = {
        "standard": ("800", [100.0, 110.0]),
        "linear": ("16000", [150.0, 165.0]),
        "aft": ("", [50.0, 56.0]),
    }
    found = cells(ratios.page("saidl/hardware", made(tmp_path, "saidl/hardware", rows)))
    assert found[0] == ["row", "the paper", "here, 95 % interval"]
    assert found[2] == ["`linear`", "20.0 ×", "1.50 × (1.50 to 1.50)"]
    assert found[3][:2] == ["`aft`", "–"]
    assert found[3][2].startswith("0.50 × (0.4")
    assert ratios.page("saidl/hardware", tmp_path / "nothing") == ""


def test_a_table_without_published_numbers_has_no_column_for_them(tmp_path: Path) -> None:
    rows = {"full": ("", [100.0, 100.0]), "fp16": ("", [200.0, 200.0])}
    found = cells(ratios.page("titan/efficiency", made(tmp_path, "titan/efficiency", rows)))
    assert found[0] == ["row", "here, 95 % interval"]
    assert found[2] == ["`fp16`", "2.00 × (2.00 to 2.00)"]


def test_perplexities_stand_best_first_with_two_decimals(tmp_path: Path) -> None:
    rows = {"bert_base": ("20", [100.0, 100.0]), "bitnet_qdyt_large": ("18", [95.0, 95.0])}
    found = cells(ratios.page(ratios.ENCODERS, made(tmp_path, ratios.ENCODERS, rows)))
    assert found[2:] == [["`bitnet_qdyt_large`", "0.90 ×", "0.95 × (0.95 to 0.95)"]]
