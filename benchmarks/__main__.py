"""`python -m benchmarks [name ...]`: run the named benchmarks, all of them without a name.

Each prints its table and writes `benchmarks/results/<name>.json` with the machine's name.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import sys
from pathlib import Path

import benchmarks
from chimera.rundir.environment import environment

RESULTS = Path(__file__).parent / "results"
HELPERS = {"__main__", "aims", "cost_report", "memory", "mqar_report", "parts", "peers", "timing"}


def names() -> list[str]:
    """Every benchmark of this folder."""
    found = (m.name for m in pkgutil.iter_modules(benchmarks.__path__))
    return sorted(set(found) - HELPERS)


def main(chosen: list[str]) -> int:
    """Run and record; exit code 2 for a name that is none."""
    unknown = set(chosen) - set(names())
    if unknown:
        print(
            f"error: no benchmark {', '.join(unknown)}; there are {', '.join(names())}",
            file=sys.stderr,
        )
        return 2
    machine = {k: v for k, v in environment().items() if k != "packages"}
    for name in chosen or names():
        print(f"== {name}", flush=True)
        result = importlib.import_module(f"benchmarks.{name}").main()
        if not result:  # it said what it lacks; what was measured before stays
            continue
        RESULTS.mkdir(exist_ok=True)
        text = json.dumps({"machine": machine, **result}, indent=2)
        (RESULTS / f"{name}.json").write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
