"""Variants of a graft are compared with LoRA alone, seed by seed."""

from __future__ import annotations

from pathlib import Path

from benchmarks import grafts
from tests.benchmarks.kit import report


def made(folder: Path, **rows: list[float]) -> Path:
    """A folder with a report of these losses."""
    return report(folder, "tptt/variants", rows, {"unigram": 4.5, "base": 3.75})


def test_variants_are_counted_by_what_their_intervals_show(tmp_path: Path) -> None:
    text = grafts.page(
        made(
            tmp_path,
            lora_only=[3.00, 3.02, 3.01],
            derivative_n2=[3.30, 3.33, 3.31],
            k_n1=[2.80, 2.82, 2.81],
            v_n1=[3.00, 3.30, 2.80],
        )
    )
    assert "LoRA alone ends at 3.010 ± 0.010 nats" in text
    assert "(the start model has 3.750, a unigram model has 4.500)" in text
    assert "Of 3 variants with a memory 1 end significantly below it and 1 significantly" in text
    assert "The lowest is `k_n1`, -0.2" in text
    assert "the highest `derivative_n2`, +0.30" in text


def test_the_row_that_trains_the_projections_stands_beside_its_own_control(tmp_path: Path) -> None:
    rows = {
        "lora_only": [3.00, 3.02, 3.01],
        "derivative_n2_projections": [3.02, 3.05, 3.04],
        "projections_only": [2.90, 2.93, 2.91],
    }
    text = grafts.page(made(tmp_path, **rows))
    assert "Of 1 variants with a memory 0 end" in text
    assert "without a memory (`projections_only`) end at 2.913 ± 0.015; the memory of" in text
    assert "adds +0.1233 ± 0.0058 (+0.1090 to +0.1377) to that" in text
    del rows["projections_only"]
    assert "projections_only" not in grafts.page(made(tmp_path / "one", **rows))


def test_without_seeds_nothing_is_said(tmp_path: Path) -> None:
    assert grafts.page(tmp_path / "empty") == "No report yet.\n"
    one = made(tmp_path, lora_only=[3.0], k_n1=[2.9])
    assert grafts.page(one) == "No report yet.\n"


def test_answers_stand_beside_a_constant_letter() -> None:
    pairs = [
        (
            {"adapter": {"mag_weight": weight}, "optim": {"lr": rate}},
            {"metrics": {"mmlu/pqem": pqem, "mmlu/pqem_articles_kept": kept}},
        )
        for weight, rate, pqem, kept in (
            (0.0, grafts.RATE, 0.25, 0.1),
            (0.5, grafts.RATE, 0.5, 0.27),
            (0.125, grafts.RATE, 0.3, 0.0),
            (0.125, 2 * grafts.RATE, 0.9, 0.9),
        )
    ]
    text = grafts.answers(pairs)
    assert "PQEM is 0.25 to 0.25 without a memory and 0.30 to 0.50 with one" in text
    assert "always «B» has 0.50" in text
    assert "the highest of 3 runs has 0.27 and a constant letter 0.25" in text
    assert not grafts.answers([])


def test_rows_are_shown_at_every_rate_of_the_seed_that_tried_several() -> None:
    pairs = [
        (
            {"table": {"row": row}, "seed": seed, "optim": {"lr": rate}},
            {"metrics": {"val/loss": loss}},
        )
        for row, seed, rate, loss in (
            ("derivative_n2", grafts.RATES_SEED, 5e-4, 3.3),
            ("lora_only", grafts.RATES_SEED, 5e-4, 3.02),
            ("lora_only", grafts.RATES_SEED, 1e-3, 2.95),
            ("derivative_n2", grafts.RATES_SEED, 2e-3, 3.25),
            ("lora_only", 0, 2e-3, 1.0),
            ("k_n1", grafts.RATES_SEED, 5e-4, 3.1),
        )
    ]
    said, *_, first, second = grafts.by_rate(pairs).strip().splitlines()
    assert said == f"Loss by learning rate, on seed {grafts.RATES_SEED} of the report:"
    assert first.split("|")[1:-1] == [" `lora_only` ", " 3.020 ", " 2.950 ", " – "]
    assert second.split("|")[1:-1] == [" `derivative_n2` ", " 3.300 ", " – ", " 3.250 "]
    assert not grafts.by_rate(pairs[4:])
