"""Seconds that a sweep and a report need around the training: 200 new jobs, 1,000 finished runs.

Nothing is trained. The finished runs are written by this file: the files that a run leaves, with
made-up numbers. Each time is that of a process of its own, imports included: the processor's
(`seconds_cpu`), and the clock's (`seconds`), which other work on the machine lengthens. Without an
index (`first`) the command lines are composed; with it (`again`) they are read.
"""

from __future__ import annotations

import csv
import json
import os
import random
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from chimera.callback.log.step_log import FIELDS
from chimera.config.compose import compose, plain
from chimera.config.tables import jobs as table_jobs
from chimera.config.tables import load
from chimera.rundir import directory as rundir
from chimera.rundir.directory import RunDir
from chimera.rundir.environment import environment

JOBS, RUNS, STEPS = 200, 1000, 100
TABLE = "bitnet_qdyt/norms"
#: What the child processes run.
PLAN = """
from chimera.sweep import main
from chimera.sweep.engine import Engine
class Planned(Exception): ...
def planned(self): raise Planned
Engine.run = planned
try: main.sweep({overrides})
except Planned: pass
"""
SWEEP = """
from chimera.sweep import main
main._report = lambda *_: None
main.sweep({overrides})
"""
REPORT = "from chimera.cli.report import main; main({overrides})"
TIMED = """
import time; began = time.time()
{work}
import json; print(json.dumps([time.process_time(), time.time() - began]))
"""


def main(runs: int = RUNS, jobs: int = JOBS) -> dict[str, Any]:
    """Measure and print as JSON."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "runs"
        plan = ["scale=smoke", "mixer=attention,retnet", "optim.lr=1e-3,2e-3"]
        plan.append(f"seed=range(0,{jobs // 4})")
        result: dict[str, Any] = {"jobs": jobs, "runs": runs}
        result["plan of new jobs"] = _seconds(root, PLAN, plan)
        sweep = [f"+{TABLE.replace('/', '=')}", "scale=smoke"]
        seeds = write_runs(root, sweep, runs)
        listed = ",".join(map(str, range(seeds)))
        report = [TABLE, "scale=smoke", f"seed={listed}", f"out={folder}/report"]
        for time in ("first", "again"):
            result[f"report, {time}"] = _seconds(root, REPORT, report)
        for time in ("first", "again"):
            name = f"sweep without its report, {time}"
            result[name] = _seconds(root, SWEEP, [*sweep, f"seed=range(0,{seeds})"])
    print(json.dumps(result, indent=2))
    return result


def write_runs(root: Path, sweep: list[str], runs: int) -> int:
    """Write finished runs of a table, as many as fit; returns the number of seeds of each row."""
    table = load(TABLE)
    seeds = max(1, runs // len(table.rows))
    for job in table_jobs(table, sweep[1:], list(range(seeds))):
        config = plain(compose(job.overrides))
        directory = RunDir.of(config)
        write_run(RunDir(root / directory.path.name), config, job.overrides)
    return seeds


def write_run(directory: RunDir, config: dict[str, Any], overrides: list[str]) -> None:
    """Write the files of one finished run, with made-up numbers."""
    draw = random.Random(str(directory.path))
    rundir.environment = cache(environment)  # asks git and pip, 0.1 s a run
    directory.start(config, overrides)
    with directory.steps.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(FIELDS)
        for step in range(STEPS):
            writer.writerow([step, *(f"{draw.random():.6f}" for _ in FIELDS[1:])])
    names = ("val/loss", "val/perplexity", "val/accuracy", "test/loss", "test/perplexity")
    record = {
        "name": config["name"],
        "numerics": config["numerics"],
        "metrics": {name: 1 + draw.random() for name in names},
        "parameters": {"total": 100_000},
        "wall_seconds": 10.0,
        "tokens_per_second": 1e4,
        "validations": [[step, draw.random()] for step in range(10)],
    }
    (directory.path / "run.json").write_text(json.dumps(record))
    directory.write_status("DONE", step=STEPS, max_steps=STEPS)


def _seconds(root: Path, work: str, overrides: list[str]) -> dict[str, float]:
    code = TIMED.format(work=work.format(overrides=overrides))
    variables = os.environ | {"CHIMERA_RUNS": str(root), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", code]
    child = subprocess.run(command, env=variables, stdout=subprocess.PIPE, text=True, check=True)
    cpu, clock = json.loads(child.stdout.strip().split("\n")[-1])
    return {"seconds_cpu": round(cpu, 2), "seconds": round(clock, 2)}


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
