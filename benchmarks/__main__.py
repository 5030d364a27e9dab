"""`python -m benchmarks [name ...]`: run the named benchmarks, all of them without a name.

Each prints its table and writes `benchmarks/results/<name>.json` with the machine's name.
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
    """The modules of this folder with a function `main`: every benchmark."""
    files = (file for file in sorted(HERE.glob("*.py")) if file.stem != "__main__")
    return [file.stem for file in files if "\ndef main(" in file.read_text(encoding="utf-8")]


def main(chosen: list[str]) -> int:
    """Run and record; exit code 2 for an unknown name."""
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
        if not result:  # it printed which input is missing; earlier results stay
            continue
        RESULTS.mkdir(exist_ok=True)
        text = json.dumps({"machine": machine, **result}, indent=2)
        (RESULTS / f"{name}.json").write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
