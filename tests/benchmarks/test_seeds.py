"""The spread of seeds is read off records that differ in the seed alone."""

from __future__ import annotations

import math
from statistics import stdev

from benchmarks.stored import Pair

from benchmarks import seeds


def record(
    seed: int,
    perplexity: float,
    mixer: str = "attention",
    metric: str = "val/perplexity",
    batches: int = 40,
    **table: str,
) -> Pair:
    """Configuration and record of a masked model."""
    choices = {
        "mixer": mixer, "quant": "none", "norm": "layernorm", "position": "rope", "scale": "none",
    }  # fmt: skip
    config = {
        "choices": choices, "seed": seed,
        "trainer": {"max_steps": 600, "limit_val_batches": batches},
        "callbacks": {"randomness": {"seed": seed}}, "mixer": {"_target_": mixer},
        "table": {"metric": metric, "note": f"Written with seed {seed}.", **table},
        "optim": {"lr": 0.002},
    }  # fmt: skip
    return config, {"metrics": {"val/perplexity": perplexity}}


def test_lines_have_three_seeds_and_the_spread_of_the_loss() -> None:
    pairs = []
    for seed, value in enumerate((100.0, 110.0, 90.0)):
        pairs.append(record(seed, value))
        pairs.append(record(seed, 50 + seed, mixer="retnet"))
        pairs.append(record(seed, 30.0, mixer="gla", metric="tokens_per_second"))
    pairs.append(record(0, 70.0, mixer="mamba"))
    lines = seeds.page(pairs).splitlines()[2:]
    assert [line.split()[1] for line in lines] == ["`mixer=retnet", "`mixer=attention"]
    assert "100, 110, 90.0" in lines[1]
    assert lines[1].endswith(f"| {stdev(map(math.log, (100, 110, 90))):.3f} |")


def test_a_row_of_a_table_is_named_and_other_runs_by_their_parts() -> None:
    row = {"name": "titan/ablations", "row": "full"}
    pairs = [record(seed, 50.0 + seed, "titan6", **row) for seed in range(3)]
    pairs += [record(seed, 70.0 + seed) for seed in range(3)]
    parts, named = seeds.page(pairs).splitlines()[2:]
    assert "| `titan/ablations` `full` | none | 0.002 | 600 |" in named
    assert "| `mixer=attention quant=none norm=layernorm position=rope` | none | 0.002 |" in parts


def test_lines_that_look_the_same_say_on_what_they_were_validated() -> None:
    row = {"name": "titan/baselines", "row": "transformer"}
    pairs = [record(seed, 50.0 + seed, "gqa", **row) for seed in range(3)]
    pairs += [record(seed, 80.0 + seed, "gqa", batches=20, **row) for seed in range(3)]
    pairs += [record(seed, 30.0 + seed) for seed in range(3)]
    text = seeds.page(pairs)
    assert "`transformer`, validated on 40 batches | none | 0.002 | 600 | 50.0, 51.0" in text
    assert "`transformer`, validated on 20 batches | none | 0.002 | 600 | 80.0, 81.0" in text
    assert text.count("validated on") == 2
