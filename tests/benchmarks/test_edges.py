"""Rows at several rates are read off records, the report's seeds apart from the others."""

from __future__ import annotations

from benchmarks.stored import Pair

from benchmarks import edges


def record(row: str, seed: int, rate: float, value: float, steps: int = 3000) -> Pair:
    config = {
        "choices": {"scale": "medium"},
        "table": {"name": "saidl/hybrids", "row": row},
        "trainer": {"max_steps": steps},
        "optim": {"lr": rate},
        "seed": seed,
    }
    return config, {"metrics": {"val/perplexity": value}}


def test_rows_with_two_rates_on_the_reports_seeds_are_listed() -> None:
    pairs = [
        record("interleaved", 101, 0.004, 13.0),
        record("interleaved", 100, 0.004, 11.0),
        record("interleaved", 1, 0.004, 20.0),
        record("interleaved", 0, 0.004, 10.0),
        record("interleaved", 0, 0.004, 99.0, steps=1000),
        record("interleaved", 0, 0.002, 12.0),
        record("interleaved", 100, 0.008, 30.0),
        record("conv_plain", 0, 0.002, 12.0),
        record("conv_plain", 100, 0.004, 12.0),
    ]
    lines = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in edges.page(pairs, "saidl/hybrids").splitlines()
    ]
    assert lines[2:] == [
        ["`interleaved`", "0.002", "", "12.00"],
        ["`interleaved`", "**0.004**", "11.00, 13.00", "10.00, 20.00"],
    ]
    assert edges.page(pairs, "saidl/positions") == ""
