"""R6: a sweep of six, of which one raises, one exits and one is killed; then the sweep again."""

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
#: Row to what befalls it; the row that others learn from stays well.
FAULTS = {"q_bert": "raise", "bitnet_qdyt_base": "exit", "bitnet_qdyt_large": "kill"}
WORDS = ["scale=smoke", "seed=0", "trainer.max_steps=6", "trainer.checkpoint_every_n_steps=1"]
WORDS += ["logger=none", "workers=2"]


def sweep(folder: Path, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """`train.py -m <words>` with its runs in `folder`, and the faults that lie there."""
    plants = {"PYTHONPATH": str(PLANTS), "CHIMERA_FAULTS": str(folder / "faults")}
    return subprocess.run(
        [sys.executable, str(ROOT / "train.py"), "-m", *words],
        capture_output=True, text=True,
        env=os.environ | plants | {"CHIMERA_RUNS": str(folder / "runs"), "COLUMNS": "120"},
    )  # fmt: skip


def plant(folder: Path, faults: dict[str, str]) -> None:
    """Word of a job's command line → `raise`, `exit` or `kill`."""
    (folder / "faults").mkdir(parents=True)
    for word, kind in faults.items():
        (folder / "faults" / word.replace("/", ":")).write_text(kind)


def states(folder: Path) -> dict[str, str]:
    """Name of each run's directory → its state."""
    return {
        file.parent.name: json.loads(file.read_text())["state"]
        for file in (folder / "runs").glob("*/status.json")
    }


def attempts(folder: Path) -> int:
    """How often a job was started, over all sweeps."""
    logs = (folder / "runs").glob("*/log.txt")
    return sum(line.startswith("--- ") for log in logs for line in log.read_text().split("\n"))


def r6(folder: Path) -> tuple[int, int]:
    """Three done and three failed; exactly those three again; a table of six rows."""
    plant(folder, {f"+{TABLE}={row}": kind for row, kind in FAULTS.items()})
    words = [f"+{TABLE.replace('/', '=')}", *WORDS]
    first = sweep(folder, words)
    done = sum(state == "DONE" for state in states(folder).values())
    said = [line for line in first.stderr.split("\n") if line.startswith("failed: ")]
    began = attempts(folder)
    second = sweep(folder, words)
    with (ROOT / "reports" / TABLE / "smoke" / "report.csv").open() as file:
        rows = {row["row"] for row in csv.DictReader(file)}
    found = {
        "3 of 6 done": (done, len(states(folder))) == (3, 6),
        "exit code 1": first.returncode == 1,
        "a line for each that failed": len(said) == 3,
        "each row named with its reason": all(
            any(f"failed: {row}: {why}" in line for line in said)
            for row, why in zip(FAULTS, ("RuntimeError", "SystemExit", "killed"), strict=True)
        ),
        "the second start runs 3": attempts(folder) - began == 3,
        "and goes on where they were": second.returncode == 0
        and sum("resuming" in log.read_text() for log in folder.glob("runs/*/log.txt")) == 3,
        "then 6 of 6 done": list(states(folder).values()) == ["DONE"] * 6,
        "the table has 6 rows": len(rows) == 6,
    }
    for what, held in found.items():
        print(f"R6  {what}: {'yes' if held else 'NO'}", flush=True)
    if not all(found.values()):
        print(first.stderr, second.stderr, sep="\n---\n")
    return sum(found.values()), len(found)
