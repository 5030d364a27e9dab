"""Measure on a GPU: jobs in waves, each job a process of its own, its row written to JSON at once.

    python -m benchmarks.gpu                               all waves, half an hour
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
import sys
import time
from collections.abc import Iterable, Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu import decode, forms, kernels, steps
from benchmarks.gpu.job import Setting, work
from chimera.rundir.environment import environment

RESULTS = Path(__file__).parents[1] / "results" / "gpu"
#: Jobs that fit into 80 GB together, the most important first.
WAVES = (
    ("card", *steps.WAVES[0]),
    steps.WAVES[1],
    ("packed", "packed gemlite", *(f"decode {name}" for name in decode.NAMES),
     *(f"kernels {name}" for name in kernels.NAMES),
     *(f"forms {part}" for part in range(forms.JOBS))),
    *steps.WAVES[2:],
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
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "4")
    machine = environment()
    packages = machine.pop("packages")
    machine |= {name: packages.get(name) for name in VERSIONS}
    failed = 0
    for wave in [options.only] if options.only else WAVES:
        for name, row in measured(wave, options):
            write(options.out, name, {"machine": machine, "tiny": options.tiny}, row)
            print(f"== {name}: {json.dumps(row)[:900]}", flush=True)
            failed += "error" in row
    return 1 if failed else 0


def measured(wave: Iterable[str], options: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Prepare all jobs of a wave, then let each measure."""
    context, began, jobs = get_context("spawn"), time.monotonic(), {}
    for name in wave:
        setting = Setting(options.device, options.tiny, context.Event(), context.Event())
        results: Any = context.SimpleQueue()
        jobs[name] = setting, results, context.Process(target=work, args=(name, setting, results))
        jobs[name][2].start()
    late = began + PREPARED * options.seconds
    for setting, _, process in jobs.values():
        while process.is_alive() and time.monotonic() < late and not setting.prepared.wait(0.1):
            pass
    for setting, _, process in jobs.values():
        if not setting.prepared.is_set():  # it must not disturb the others
            process.kill()
    print(f"prepared in {time.monotonic() - began:.0f} s", flush=True)
    for name, (setting, results, process) in jobs.items():
        setting.go.set()
        process.join(max(1.0, began + options.seconds - time.monotonic()))
        late_too = process.is_alive()
        process.kill()
        process.join()
        no_row = "not measured in time" if late_too else f"ended with {process.exitcode}"
        yield name, {"error": no_row} if results.empty() else results.get()


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
