"""Measure on a GPU: jobs in waves, each job a process of its own, its row written to JSON at once.

    python -m benchmarks.gpu                               all waves, a quarter of an hour
    python -m benchmarks.gpu --only card 'steps bert'      one wave of these jobs
    python -m benchmarks.gpu --device cpu --tiny           the program itself, without a GPU

The jobs of a wave prepare at the same time (imports, data, compilation, warm-up). When all are
ready they measure one after the other, so that nothing else runs meanwhile. A job that fails, or
takes too long, leaves a row with `error`; the others go on, and the program returns 1.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu import forms, kernels, steps
from chimera.paths import ROOT
from chimera.rundir.environment import environment

RESULTS = Path(__file__).parents[1] / "results" / "gpu"
#: Jobs that fit into 80 GB together, the most important first.
WAVES = (
    ("card", *(f"steps {name}" for name in steps.FIRST)),
    tuple(f"steps {name}" for name in steps.SECOND),
    ("packed", "packed gemlite", *(f"kernels {name}" for name in kernels.NAMES),
     *(f"forms {part}" for part in range(forms.JOBS))),
    tuple(f"steps {name}" for name in steps.THIRD),
)  # fmt: skip
#: Share of a wave's seconds in which its jobs have to be ready.
PREPARED = 0.7
VERSIONS = ("torch", "triton", "transformers", "fla-core", "gemlite")


def main(arguments: list[str] | None = None) -> int:
    """Run the chosen jobs; return 0 if all were measured, 1 if one failed, 2 for bad input."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small shapes, to test the program")
    parser.add_argument("--seconds", type=float, default=220, help="for a wave")
    parser.add_argument("--only", nargs="+", metavar="JOB", help="one wave of these")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    options = parser.parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        print("error: --device cuda: torch finds no GPU here; use --device cpu --tiny to try the"
              " program", file=sys.stderr)  # fmt: skip
        return 2
    machine = environment()
    packages = machine.pop("packages")
    machine |= {name: packages.get(name) for name in VERSIONS}
    failed = 0
    for wave in [options.only] if options.only else WAVES:
        with tempfile.TemporaryDirectory() as folder:
            for name, row in measured(wave, Path(folder), options):
                write(options.out, name, {"machine": machine, "tiny": options.tiny}, row)
                print(f"== {name}: {json.dumps(row)[:600]}", flush=True)
                failed += "error" in row
    return 1 if failed else 0


def measured(wave: Any, folder: Path, options: Any) -> Any:
    """Prepare all jobs of a wave, then let each measure; yields names and rows."""
    began, jobs = time.monotonic(), {}
    for name in wave:
        place = folder / name.replace(" ", "-")
        command = [sys.executable, "-m", "benchmarks.gpu.job", str(place), options.device, name]
        with place.with_suffix(".log").open("w") as log:
            jobs[name] = place, subprocess.Popen(
                [*command, *["--tiny"] * options.tiny], cwd=ROOT, stdout=log, stderr=log,
                env={"TORCHINDUCTOR_COMPILE_THREADS": "4", **os.environ},
            )  # fmt: skip
    for place, process in jobs.values():
        until = began + PREPARED * options.seconds
        while time.monotonic() < until and process.poll() is None:
            if place.with_suffix(".ready").exists():
                break
            time.sleep(0.1)
    for place, process in jobs.values():  # what is late must not disturb the others
        if not place.with_suffix(".ready").exists():
            process.kill()
    print(f"prepared in {time.monotonic() - began:.0f} s", flush=True)
    for name, (place, process) in jobs.items():
        place.with_suffix(".go").touch()
        row = {"error": "not ready in time"}
        try:
            process.wait(max(1.0, began + options.seconds - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            row = {"error": "not measured in time"}
        if place.with_suffix(".json").exists():
            row = json.loads(place.with_suffix(".json").read_text())
        elif process.wait() > 0:
            row = {"error": f"ended with {process.wait()}"}
        if "error" in row:
            print("\n".join(place.with_suffix(".log").read_text().splitlines()[-12:]), flush=True)
        yield name, row


def write(out: Path, name: str, about: dict[str, Any], row: dict[str, Any]) -> None:
    """Put a job's row into the file of its part and this card; rows of tiny shapes stay apart."""
    part, _, label = name.partition(" ")
    card = str(about["machine"]["gpu"] or "cpu").lower().replace(" ", "-")
    file = out / f"{part}-{card}.json"
    known = json.loads(file.read_text()) if file.exists() else {}
    rows = known.get("rows", {}) if known.get("tiny") == about["tiny"] else {}
    rows[label or part] = {"commit": about["machine"]["git"].get("commit", "")[:8], **row}
    out.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
