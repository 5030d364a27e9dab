"""What `make train` takes and gives: three seeds from a cold cache, one after the other, all cores.

    python -m benchmarks main_job

Figures of other makes of CPU stay in the results file: a run differs from make to make.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.__main__ import RESULTS
from chimera.paths import ROOT
from chimera.rundir.directory import RunDir
from chimera.rundir.environment import environment

#: What `make train` runs; a test holds it to the Makefile's RUN.
JOB = ("mixer=retnet", "quant=bitnet158", "norm=qdyt")
SEEDS = (0, 1, 2)


def main() -> dict[str, Any]:
    """Train the seeds and print them; return them beside those of other processors."""
    machine = {key: value for key, value in environment().items() if key != "packages"}
    runs = []
    for seed in SEEDS:
        runs.append(measure(JOB, seed))
        print(runs[-1], flush=True)
    found = known() | {machine["processor"]: {"machine": machine, "runs": runs}}
    return {"processors": dict(sorted(found.items()))}


def measure(job: tuple[str, ...], seed: int) -> dict[str, float]:
    """Train one seed in a folder of its own.

    Returns:
        dict with `seed`, `steps`, `tokens`, `seconds` (of the whole command), and the
        validation's `perplexity` and `unigram` (a unigram model's on the same tokens).
    """
    with tempfile.TemporaryDirectory() as folder:
        places = {"CHIMERA_RUNS": f"{folder}/runs", "CHIMERA_CACHE": f"{folder}/cache"}
        started = time.perf_counter()
        subprocess.run(
            [sys.executable, ROOT / "train.py", *job, f"seed={seed}", f"run_dir={folder}/run"],
            env=os.environ | places,
            check=True,
        )
        seconds = time.perf_counter() - started
        directory = RunDir(Path(folder) / "run")
        record, data = directory.record(), directory.config()["data"]
    metrics, steps = record["metrics"], record["steps"]
    return {
        "seed": seed,
        "steps": steps,
        "tokens": steps * data["batch_size"] * data["seq_len"],
        "seconds": seconds,
        "perplexity": metrics["val/perplexity"],
        "unigram": metrics["val/unigram_perplexity"],
    }


def known() -> dict[str, Any]:
    """Processors of the results file."""
    file = RESULTS / "main_job.json"
    if not file.exists():
        return {}
    found: dict[str, Any] = json.loads(file.read_text())["processors"]
    return found
