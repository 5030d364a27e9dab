"""A sweep of six jobs of which one raises, one exits and one is killed; then a second sweep."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from chimera.paths import ROOT

PLANTS = Path(__file__).parent / "plants"
TABLE = "bitnet_qdyt/main"
#: Faults by row; the teacher of other rows has none.
FAULTS = {"q_bert": "raise", "bitnet_qdyt_base": "exit", "bitnet_qdyt_large": "kill"}
OVERRIDES = ["scale=smoke", "seed=0", "trainer.max_steps=6", "trainer.checkpoint_every_n_steps=1"]
OVERRIDES += ["logger=none", "workers=2"]


def sweep(folder: Path, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run `train.py -m <arguments>` with the faults in `folder` and its runs in `folder`/runs."""
    path = os.pathsep.join(filter(None, [str(PLANTS), os.environ.get("PYTHONPATH")]))
    plants = {"PYTHONPATH": path, "CHIMERA_FAULTS": str(folder / "faults")}
    return subprocess.run(
        [sys.executable, str(ROOT / "train.py"), "-m", *arguments],
        capture_output=True, text=True,
        env=os.environ | plants | {"CHIMERA_RUNS": str(folder / "runs"), "COLUMNS": "120"},
    )  # fmt: skip


def plant(folder: Path, faults: dict[str, str]) -> None:
    """Write the files of the faults: argument of a job's command line → `raise`, `exit`, `kill`."""
    (folder / "faults").mkdir(parents=True)
    for argument, fault in faults.items():
        (folder / "faults" / argument.replace("/", ":")).write_text(fault)


def states(folder: Path) -> dict[str, str]:
    """State of each run by the name of its directory."""
    return {
        file.parent.name: json.loads(file.read_text())["state"]
        for file in (folder / "runs").glob("*/status.json")
    }


def attempts(folder: Path) -> int:
    """Number of job starts over all sweeps."""
    logs = (folder / "runs").glob("*/log.txt")
    return sum(line.startswith("--- ") for log in logs for line in log.read_text().split("\n"))


def resumes(folder: Path) -> list[str]:
    """The first sweep finishes 3 of 6 jobs, and the second resumes exactly the others."""
    plant(folder, {f"+{TABLE}={row}": fault for row, fault in FAULTS.items()})
    arguments = [f"+{TABLE.replace('/', '=')}", *OVERRIDES]
    first = sweep(folder, arguments)
    done = list(states(folder).values()).count("DONE"), len(states(folder))
    failed = [line for line in first.stderr.split("\n") if line.startswith("failed: ")]
    reasons = zip(FAULTS, ("RuntimeError", "SystemExit", "killed"), strict=True)
    before = attempts(folder)
    second = sweep(folder, arguments)
    logs = [log.read_text() for log in folder.glob("runs/*/log.txt")]
    with (ROOT / "reports" / TABLE / "smoke" / "report.csv").open() as file:
        rows = {line["row"] for line in csv.DictReader(file) if line["state"] != "baseline"}
    held = {
        f"{done} of 6 done": done == (3, 6),
        f"exit codes {first.returncode}, {second.returncode}": (
            first.returncode == 1 and second.returncode == 0
        ),
        "a line for each failed job with its reason": len(failed) == 3
        and all(any(f"failed: {row}: {why}" in line for line in failed) for row, why in reasons),
        "the second sweep starts 3 jobs": attempts(folder) - before == 3,
        "and resumes them": sum("resuming" in log for log in logs) == 3,
        "then 6 of 6 done": list(states(folder).values()) == ["DONE"] * 6,
        # A run with QDyT has a second row, evaluated with the token's own mean.
        "6 rows": len({row.removesuffix("_token_mean") for row in rows}) == 6,
    }
    return [f"not so: {name}" for name, good in held.items() if not good]


CASES = {"a job raises, one exits, one is killed": resumes}
