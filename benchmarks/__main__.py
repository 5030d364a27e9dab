"""Run benchmarks: `python -m benchmarks [name ...]`, without names all of them.

Words `key=value` after a single name are given to it: `python -m benchmarks profile mixer=delta`;
`--help` lists them.
Each benchmark prints its table. Its results are written to `benchmarks/results/<name>.json`
together with a description of the machine.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

from chimera.config.arguments import describe
from chimera.errors import Interrupted, UserError
from chimera.rundir.environment import environment

HERE = Path(__file__).parent
RESULTS = HERE / "results"


def names() -> list[str]:
    """Names of all benchmarks: the modules of this folder that have a function `main`."""
    files = (file for file in sorted(HERE.glob("*.py")) if file.stem != "__main__")
    return [file.stem for file in files if "\ndef main(" in file.read_text(encoding="utf-8")]


def main(arguments: list[str]) -> int:
    """Run the chosen benchmarks and write their results; return 2 for a mistake, else 0."""
    words = [word for word in arguments if "=" in word or word == "--help"]
    chosen = [word for word in arguments if word not in words]
    if arguments == ["--help"]:
        print(f"{__doc__}\nBenchmarks: {', '.join(names())}")
        return 0
    if words:
        return _with_words(chosen, words)
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
        try:
            result = importlib.import_module(f"benchmarks.{name}").main()
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        if not result:  # an input is missing, and the benchmark printed which; keep old results
            continue
        RESULTS.mkdir(exist_ok=True)
        text = json.dumps({"machine": machine, **result}, indent=2)
        (RESULTS / f"{name}.json").write_text(text + "\n")
    return 0


def _with_words(chosen: list[str], words: list[str]) -> int:
    """Run the one benchmark that takes words, which prints its results itself."""
    takers = [n for n in names() if "\ndef main(words" in (HERE / f"{n}.py").read_text("utf-8")]
    if len(chosen) != 1 or chosen[0] not in takers:
        named = " and ".join(chosen) or "any"
        print(
            f"error: '{words[0]}' is no word of {named}; one of {', '.join(takers)} takes words",
            file=sys.stderr,
        )
        return 2
    module = importlib.import_module(f"benchmarks.{chosen[0]}")
    if "--help" in words:
        print(describe(module.Options, module.USAGE))
        return 0
    try:
        module.main(words)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except Interrupted as stopped:
        print(f"{stopped}; start the same command again to go on", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
