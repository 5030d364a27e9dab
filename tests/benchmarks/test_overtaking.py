"""Two rows are compared at the steps where both were validated."""

from __future__ import annotations

import math

from benchmarks.stored import Pair

from benchmarks import overtaking


def record(row: str, steps: int, *perplexities: float, seed: int = 0) -> Pair:
    """Configuration and record of a decoder, validated every 250 steps."""
    config = {
        "table": {"name": overtaking.TABLE, "row": row},
        "choices": {"scale": "small"},
        "trainer": {"max_steps": steps},
        "seed": seed,
    }
    return config, {
        "validations": [[250 * at, math.log(value)] for at, value in enumerate(perplexities, 1)]
    }


def test_rows_stand_below_each_other() -> None:
    pairs = [
        record("baseline", 1600, 213.0, 163.3),
        record("baseline", 400, 1.0, 1.0),
        record("conv_before_attn", 1600, 272.9, 154.4, 118.1),
        record("conv_before_attn", 1600, 1.0, 1.0, seed=1),
    ]
    assert overtaking.page(pairs).splitlines() == [
        "| row | step 250 | step 500 |",
        "| --- | ---: | ---: |",
        "| `baseline` | 213.0 | 163.3 |",
        "| `conv_before_attn` | 272.9 | 154.4 |",
    ]
    assert overtaking.page(pairs[:2]) == "No records yet.\n"
