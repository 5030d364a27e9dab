"""Measure speed and memory: `python -m benchmarks <name> [word …]`; without a name, the list.

Each benchmark prints its table; its results go to `benchmarks/results/<name>.json` with a
description of the machine. The notebooks in `notebooks/evidence/` show them.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import sys
from pathlib import Path

from chimera.errors import Interrupted, UserError
from chimera.rundir.environment import environment

HERE = Path(__file__).parent
RESULTS = HERE / "results"


def names() -> dict[str, str]:
    """First line of the text of each benchmark: the modules of this folder with a `main`."""
    found = {}
    for file in sorted(HERE.glob("[!_]*.py")):
        text = file.read_text(encoding="utf-8")
        if "\ndef main(" in text:
            found[file.stem] = (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
    return found


def main(arguments: list[str]) -> int:
    """Run a benchmark and write its results; return 2 for a mistake, else 0."""
    name, *words = arguments or ["--help"]
    known = names()
    if name == "--help":
        print(__doc__, *(f"{name:<14}{about}" for name, about in known.items()), sep="\n")
        return 0
    try:
        if name not in known:
            raise UserError(f"{name} is no benchmark; choose one of {', '.join(known)}")
        run = importlib.import_module(f"benchmarks.{name}").main
        if words and not inspect.signature(run).parameters:
            raise UserError(f"{name} takes no words, and was given {' '.join(words)}")
        result = run(*words)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except Interrupted as stopped:
        print(stopped, file=sys.stderr)
        return 130
    if result:  # empty: an input is missing, and the benchmark said which
        machine = {k: v for k, v in environment().items() if k != "packages"}
        text = json.dumps({"machine": machine, **result}, indent=2)
        (RESULTS / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
