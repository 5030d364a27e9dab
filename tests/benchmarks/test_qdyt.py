"""The lines on QDyT are read off records, by warm-up and rule of the mean."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from benchmarks import qdyt


def record(store: Path, norm: str, seed: int, values: list[float], warm: int = 0) -> None:
    """A record with these perplexities: of the run, and of the other rule if there is one."""
    folder = store / f"mlm-attention-hbit-{norm}-{warm}{seed}"
    folder.mkdir(parents=True)
    callbacks = {"callbacks": {"qdyt": {"warmup_steps": warm}}} if warm else {}
    config = {
        "choices": {"scale": "medium", "norm": norm},
        "norm": callbacks,
        "seed": seed,
        "trainer": {"max_steps": 1800},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    run = {"metrics": {"val/perplexity": values[0]}}
    if len(values) > 1:
        run["other_rules"] = {"token_mean": {"val/perplexity": values[1]}}
    (folder / "run.json").write_text(json.dumps(run))


def test_runs_are_kept_apart_by_warm_up_and_rule(tmp_path: Path) -> None:
    for seed in (0, 1):
        record(tmp_path, "layernorm", seed, [90.0 + seed])
        record(tmp_path, "qdyt", seed, [100.0 + seed, 88.0 + seed], warm=180)
        record(tmp_path, "qdyt", seed, [190.0 + seed, 170.0 + seed], warm=2000)
    lines = qdyt.page(tmp_path).splitlines()[2:]
    assert [line.split(" | ")[0].strip("| ") for line in lines] == [
        "`qdyt`, α warm after 180 steps",
        "`layernorm`",
        "`qdyt`, α warm after 180 steps",
        "`qdyt`, α warm after 900 steps",
        "`qdyt`, α warm after 900 steps",
    ]
    assert lines[0].split(" | ")[1:3] == ["token", "88.50 ± 0.71"]
    assert "-2" in lines[0].split(" | ")[3]
    assert "+100" in lines[-1]
