"""What a fault in one process does to a run of two: `python -m tests.ranks.faults`.

For each fault, process and strategy: the exit code, the seconds from the fault to the end of all
processes, the status, the step that the next start goes on from, and whether the run then ends
with the losses of one that was not disturbed.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.torture import job

ROOT = Path(__file__).resolve().parents[2]
KINDS = ("kill", "term", "stall", "raise", "poison", "skip", "full")
#: The step before which the fault happens, and the seconds after which a process gives up.
STEP, TIMEOUT = 7, 5
TWO = ["trainer.devices=2", "data.batch_size=16", f"trainer.timeout={TIMEOUT}"]
TWO += ["trainer.accelerator=cpu", "trainer.progress=none"]


@dataclass(frozen=True)
class Outcome:
    """What a fault did.

    Args:
        code: exit code of the command.
        seconds: from the fault to the end of all processes.
        state: in status.json, after it.
        step: that the next start went on from; None if it needed none.
        said: lines of error that the command printed.
        same: the losses in the end are those of the undisturbed run.
    """

    code: int
    seconds: float
    state: str
    step: int | None
    said: tuple[str, ...]
    same: bool


class Bench:
    """A folder with undisturbed runs to compare with.

    Args:
        folder: of all runs.
        launcher: what starts the processes: None for `trainer.devices` alone, or torchrun.
        timeout: seconds after which a process gives up; more on a machine that has much to do.
    """

    def __init__(self, folder: Path, launcher: str | None = None, timeout: int = TIMEOUT) -> None:
        self.folder, self.launcher, self.timeout = folder, launcher, timeout
        self._whole: dict[str, list[float]] = {}

    def outcome(self, kind: str, rank: int, strategy: str) -> Outcome:
        """Train with a fault, then again until the run is done."""
        to = self.folder / f"{kind}-{rank}-{strategy}"
        marker = self.folder / f"{kind}-{rank}-{strategy}.marker"
        fault = {"kind": "poison" if kind == "skip" else kind, "rank": rank, "step": STEP}
        more = [f"+callbacks.fault.{key}={value}" for key, value in fault.items()]
        more += ["+callbacks.fault._target_=tests.ranks.fault.Fault"]
        more += [f"+callbacks.fault.marker={marker}", f"trainer.strategy={strategy}"]
        more += ["guard=skip"] * (kind == "skip")
        done = self.train(to, *more)
        seconds = time.time() - marker.stat().st_mtime
        state = read(to / "status.json").get("state", "none")
        errors = [line for line in done.stderr.splitlines() if line.startswith("error:")]
        step = None
        if state != "DONE":
            again = self.train(to, *more)
            resumed = [line for line in again.stderr.splitlines() if "resuming from" in line]
            step = int(resumed[0].rpartition(" ")[2]) if resumed else 0
        same = kind == "skip" or losses(to) == self.whole(strategy)
        same = same and read(to / "status.json")["state"] == "DONE"
        return Outcome(done.returncode, seconds, state, step, tuple(errors), same)

    def whole(self, strategy: str) -> list[float]:
        """Losses of the run that nothing disturbs."""
        if strategy not in self._whole:
            to = self.folder / f"whole-{strategy}"
            done = self.train(to, f"trainer.strategy={strategy}")
            if done.returncode:
                raise RuntimeError(done.stderr)
            self._whole[strategy] = losses(to)
        return self._whole[strategy]

    def train(self, to: Path, *more: str) -> subprocess.CompletedProcess[str]:
        """Run `train.py` on two processes to its end."""
        two = [*TWO, f"trainer.timeout={self.timeout}"]
        line = job.arguments(self.folder / "text", to, *two, *more)
        start: Sequence[str] = [sys.executable, str(ROOT / "train.py")]
        if self.launcher == "torchrun":
            torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
            start = [*torchrun, "--nproc-per-node=2", str(ROOT / "train.py")]
        path = f"{ROOT}/src:{ROOT}"
        environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        environment["PYTHONWARNINGS"] = "ignore"
        command = [*start, *line]
        return subprocess.run(command, capture_output=True, text=True, env=environment)


def read(file: Path) -> dict[str, Any]:
    """A JSON file, or `{}`."""
    return dict(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else {}


def losses(run: Path) -> list[float]:
    """Loss of each step."""
    with (run / "steps.csv").open(newline="", encoding="utf-8") as rows:
        return [float(row["loss"]) for row in csv.DictReader(rows)]


def rows(bench: Bench, kinds: Sequence[str], strategies: Sequence[str]) -> Iterator[str]:
    """Rows of the Markdown table, one for each fault."""
    yield "| strategy | fault | process | exit code | seconds | status | resumed at | same losses |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for strategy in strategies:
        for kind in kinds:
            for rank in (0,) if kind == "full" else (0, 1):  # the first process alone writes
                got = bench.outcome(kind, rank, strategy)
                cells = [strategy, kind, rank, got.code, f"{got.seconds:.1f}", got.state]
                cells += ["–" if got.step is None else got.step]
                cells += ["skipped one" if kind == "skip" and got.same else got.same]
                yield " | ".join(["", *map(str, cells), ""]).strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kinds", nargs="*", default=list(KINDS))
    parser.add_argument("--strategies", nargs="*", default=["ddp", "fsdp"])
    parser.add_argument("--launcher", choices=["torchrun"])
    parser.add_argument("--timeout", type=int, default=TIMEOUT)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), options.launcher, options.timeout)
        for row in rows(bench, options.kinds, options.strategies):
            print(row, flush=True)


if __name__ == "__main__":
    main()
