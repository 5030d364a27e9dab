"""The spread of seeds is read off records that differ in the seed alone."""

from __future__ import annotations

import json
import math
from pathlib import Path
from statistics import stdev

import yaml

from benchmarks import seeds


def record(store: Path, seed: int, perplexity: float, mixer: str = "attention") -> None:
    """A record of a masked model."""
    folder = store / f"mlm-{mixer}-{seed}"
    folder.mkdir(parents=True)
    choices = {
        "mixer": mixer, "quant": "none", "norm": "layernorm", "position": "rope", "scale": "none",
    }  # fmt: skip
    config = {"choices": choices, "seed": seed, "trainer": {"max_steps": 600}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / "run.json").write_text(json.dumps({"metrics": {"val/perplexity": perplexity}}))


def test_lines_have_three_seeds_and_the_spread_of_the_loss(tmp_path: Path) -> None:
    for seed, value in enumerate((100.0, 110.0, 90.0)):
        record(tmp_path, seed, value)
        record(tmp_path, seed, 50 + seed, mixer="retnet")
    record(tmp_path, 0, 70.0, mixer="mamba")
    lines = seeds.page(tmp_path).splitlines()[2:]
    assert [line.split()[1] for line in lines] == ["`mixer=retnet", "`mixer=attention"]
    assert "100, 110, 90.0" in lines[1]
    assert lines[1].endswith(f"| {stdev(map(math.log, (100, 110, 90))):.3f} |")
