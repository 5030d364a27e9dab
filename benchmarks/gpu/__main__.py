"""Run all parts, each as a process of its own, and write one JSON file for each.

    python -m benchmarks.gpu                          all parts, a quarter of an hour
    python -m benchmarks.gpu --only presets lengths   some
    python -m benchmarks.gpu --device cpu --tiny      the program itself, without a GPU

A part that fails, runs out of memory or out of time leaves a file that says so, and the others go
on; the program then returns 1.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from chimera.paths import ROOT

#: Parts in order, with their shares of the time, by what they took or lacked on an H200.
PARTS = {"contract": 220, "presets": 170, "lengths": 100, "packed": 70, "job": 190, "mixers": 150}
RESULTS = Path(__file__).parents[1] / "results"


def main(arguments: list[str] | None = None) -> int:
    """Run the chosen parts; return 0 if all were measured, 1 if one failed, 2 for bad input."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small shapes, to test the program")
    parser.add_argument("--seconds", type=float, default=900, help="for all parts")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--out", type=Path, default=RESULTS / "gpu", help="folder of the results")
    options = parser.parse_args(arguments)
    machine = describe(options.device)
    if machine is None:
        print("error: --device cuda: torch finds no GPU here; use --device cpu --tiny to try the"
              " program", file=sys.stderr)  # fmt: skip
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    failed = []
    for part in options.only:
        share = PARTS[part] / sum(PARTS[p] for p in options.only)
        began = time.monotonic()
        result = measure(part, options, share * options.seconds)
        spent = round(time.monotonic() - began, 1)
        failed += [part] if "error" in result else []
        content = {"machine": machine, "tiny": options.tiny, "seconds": spent, **result}
        (options.out / f"{part}.json").write_text(json.dumps(content, indent=1) + "\n")
        print(f"== {part}: {spent:.0f} s{', ' + result['error'] if 'error' in result else ''}",
              flush=True)  # fmt: skip
    return 1 if failed else 0


def measure(part: str, options: argparse.Namespace, seconds: float) -> dict[str, Any]:
    """Run one part as a process; its results, or `error` in one line."""
    command = [sys.executable, "-m", "benchmarks.gpu.part", part]
    command += [options.device, str(seconds), *(["--tiny"] if options.tiny else [])]
    try:
        done = subprocess.run(
            command, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=1.5 * seconds + 30
        )
    except subprocess.TimeoutExpired:
        return {"error": f"stopped after {1.5 * seconds + 30:.0f} s"}
    marked = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    print("\n".join(x for x in done.stdout.splitlines() if x not in marked), flush=True)
    if not marked:
        return {"error": f"ended with {done.returncode} and no result"}
    result: dict[str, Any] = json.loads(marked[-1].removeprefix("RESULT "))
    return result


def describe(device: str) -> dict[str, Any] | None:
    """The machine; None if there is no such device."""
    import torch

    from chimera.rundir.environment import environment

    if device == "cuda" and not torch.cuda.is_available():
        return None
    machine = {k: v for k, v in environment().items() if k != "packages"}
    machine |= {"torch": torch.__version__, "cuda": torch.version.cuda, "device": device}
    if device == "cuda":
        facts = torch.cuda.get_device_properties(0)
        machine |= {"gpu_gib": round(facts.total_memory / 2**30, 1)}
    return machine


if __name__ == "__main__":
    sys.exit(main())
