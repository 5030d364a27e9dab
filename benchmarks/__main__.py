"""Run benchmarks: `python -m benchmarks [name ...]`, without names all of them.

Each benchmark prints its table. Its results are written to `benchmarks/results/<name>.json`
together with a description of the machine.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

from chimera.rundir.environment import environment

HERE = Path(__file__).parent
RESULTS = HERE / "results"


def names() -> list[str]:
    """Names of all benchmarks: the modules of this folder that have a function `main`."""
    files = (file for file in sorted(HERE.glob("*.py")) if file.stem != "__main__")
    return [file.stem for file in files if "\ndef main(" in file.read_text(encoding="utf-8")]


def main(chosen: list[str]) -> int:
    """Run the chosen benchmarks and write their results; return 2 for an unknown name, else 0."""
    unknown = set(chosen) - set(names())
    if unknown:
        print(
            f"error: {', '.join(sorted(unknown))} is no benchmark; choose of {', '.join(names())}",
            file=sys.stderr,
        )
        return 2
    machine = {k: v for k, v in environment().items() if k != "packages"}
    for name in chosen or names():
        print(f"== {name}", flush=True)
        result = importlib.import_module(f"benchmarks.{name}").main()
        if not result:  # an input is missing, and the benchmark printed which; keep old results
            continue
        RESULTS.mkdir(exist_ok=True)
        text = json.dumps({"machine": machine, **result}, indent=2)
        (RESULTS / f"{name}.json").write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
