"""Speed of two processes against one, one thread each: the main job, DDP and FSDP2.

Efficiency is tokens/s of two processes over twice those of one. The batch is the same in all, so a
process of two has half of it. «two runs» are two runs of one process at the same time, which share
nothing: what the machine itself leaves of twice the speed. Runs take turns, so that a change of the
machine meets all of them.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.timing import show
from chimera.paths import ROOT

JOB = ["mixer=retnet", "quant=bitnet158", "norm=qdyt", "logger=none", "trainer.progress=none"]
JOB += ["trainer.max_steps=40", "trainer.val_check_interval=0", "trainer.limit_val_batches=1"]
JOB += ["trainer.limit_test_batches=1", "trainer.accelerator=cpu", "trainer.threads=1"]
WAYS = {
    "one process": [],
    "two processes, ddp": ["trainer.devices=2", "trainer.strategy=ddp"],
    "two processes, fsdp": ["trainer.devices=2", "trainer.strategy=fsdp"],
}
SEPARATE = "two runs"
TURNS = 3


def speed(to: Path, words: list[str]) -> float:
    """Tokens per second of one run."""
    command = [sys.executable, str(ROOT / "train.py"), *JOB, *words, f"run_dir={to}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(command, check=True, capture_output=True, env=environment)
    record: dict[str, Any] = json.loads((to / "run.json").read_text(encoding="utf-8"))
    return float(record["tokens_per_second"])


def main() -> dict[str, Any]:
    """Measure and print; returns tokens/s and efficiency of each way."""
    speeds: dict[str, list[float]] = {name: [] for name in (*WAYS, SEPARATE)}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(TURNS):
            for number, (name, words) in enumerate(WAYS.items()):
                speeds[name].append(speed(Path(folder) / f"{turn}-{number}", words))
            both = [Path(folder) / f"{turn}-{side}" for side in ("left", "right")]
            with ThreadPoolExecutor(2) as pool:
                speeds[SEPARATE].append(sum(pool.map(lambda to: speed(to, []), both)))
    medians = {name: statistics.median(values) for name, values in speeds.items()}
    one = medians["one process"]
    found = {
        name: {
            "tokens_per_second": median,
            "all": speeds[name],
            "efficiency": 1.0 if name == "one process" else median / (2 * one),
        }
        for name, median in medians.items()
    }
    show(found, "tokens/s")
    return {"ranks": found}
