"""The lines on QDyT are read off records, by warm-up and rule of the mean."""

from __future__ import annotations

from typing import Any

import pytest
from benchmarks.stored import Pair

from benchmarks import qdyt


def record(
    norm: str,
    seed: int,
    values: list[float],
    warm: int = 0,
    rate: float = 0.002,
    ste: str = "lsq",
    ffn: str = "swiglu",
    preset: str = qdyt.PRESET,
) -> Pair:
    """A record with these perplexities: of the run, and of the other rule if there is one."""
    callbacks = {"callbacks": {"qdyt": {"warmup_steps": warm}}} if warm else {}
    config = {
        "choices": {"preset": preset, "scale": "medium", "norm": norm, "ffn": ffn},
        "quant": {"ste": ste},
        "norm": callbacks,
        "seed": seed,
        "optim": {"lr": rate},
        "trainer": {"max_steps": 1800},
    }
    run: dict[str, Any] = {"metrics": {"val/perplexity": values[0]}}
    if len(values) > 1:
        run["other_rules"] = {"token_mean": {"val/perplexity": values[1]}}
    return config, run


def test_runs_are_kept_apart_by_warm_up_and_rule() -> None:
    pairs = []
    for seed in (0, 1):
        pairs.append(record("qdyt", seed, [100.0 + seed, 88.0 + seed], warm=180))
        pairs.append(record("layernorm", seed, [90.0 + seed]))
        pairs.append(record("qdyt", seed, [190.0 + seed, 170.0 + seed], warm=2000))
        pairs.append(record("layernorm", seed, [95.0 + seed], rate=0.004))
        pairs.append(record("qdyt", seed, [1.0, 1.0], warm=180, ste="standard"))
        pairs.append(record("qdyt", seed, [1.0, 1.0], warm=180, ffn="relu2"))
        pairs.append(record("qdyt", seed, [1.0, 1.0], warm=180, preset="bitnet_qdyt_large"))
    lines = qdyt.page(pairs).splitlines()[2:]
    assert [line.split(" | ")[0].strip("| ") for line in lines] == [
        "`qdyt`, α warm after 180 steps",
        "`layernorm`",
        "`layernorm`",
        "`qdyt`, α warm after 180 steps",
        "`qdyt`, α warm after 900 steps",
        "`qdyt`, α warm after 900 steps",
    ]
    assert lines[0].split(" | ")[1:5] == ["0.002", "token", "2", "88.50 ± 0.71"]
    assert "-2" in lines[0].split(" | ")[5]
    assert lines[2].split(" | ")[1:5] == ["0.004", "–", "2", "95.50 ± 0.71"]
    assert "+5" in lines[2].split(" | ")[5]
    assert "+100" in lines[-1]


def test_two_runs_of_one_seed_are_an_error() -> None:
    with pytest.raises(AssertionError, match="two runs of"):
        qdyt.page([record("layernorm", 0, [90.0]), record("layernorm", 0, [91.0])])
