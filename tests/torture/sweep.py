"""R6: a sweep of six jobs of which one raises, one exits and one is killed; then a second sweep."""

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


def r6(folder: Path) -> tuple[int, int]:
    """Check that the first sweep finishes 3 of 6 jobs and the second resumes exactly the others.

    Returns:
        Number of checks that passed, number of checks.
    """
    plant(folder, {f"+{TABLE}={row}": fault for row, fault in FAULTS.items()})
    arguments = [f"+{TABLE.replace('/', '=')}", *OVERRIDES]
    first = sweep(folder, arguments)
    done = sum(state == "DONE" for state in states(folder).values())
    failed = [line for line in first.stderr.split("\n") if line.startswith("failed: ")]
    first_attempts = attempts(folder)
    second = sweep(folder, arguments)
    with (ROOT / "reports" / TABLE / "smoke" / "report.csv").open() as file:
        lines = list(csv.DictReader(file))
    # A run with QDyT has a second row, evaluated with the token's own mean.
    trained = [line["row"] for line in lines if line["state"] != "baseline"]
    rows = {row.removesuffix("_token_mean") for row in trained}
    checks = {
        "3 of 6 done": (done, len(states(folder))) == (3, 6),
        "exit code 1": first.returncode == 1,
        "a line for each failed job": len(failed) == 3,
        "each row is named with its reason": all(
            any(f"failed: {row}: {why}" in line for line in failed)
            for row, why in zip(FAULTS, ("RuntimeError", "SystemExit", "killed"), strict=True)
        ),
        "the second sweep starts 3 jobs": attempts(folder) - first_attempts == 3,
        "and resumes them": second.returncode == 0
        and sum("resuming" in log.read_text() for log in folder.glob("runs/*/log.txt")) == 3,
        "then 6 of 6 done": list(states(folder).values()) == ["DONE"] * 6,
        "the table has 6 rows": len(rows) == 6,
    }
    for check, passed in checks.items():
        print(f"R6  {check}: {'yes' if passed else 'NO'}", flush=True)
    if not all(checks.values()):
        print(first.stderr, second.stderr, sep="\n---\n")
    return sum(checks.values()), len(checks)
