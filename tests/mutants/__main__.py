"""`python -m tests.mutants seed=1 count=60`: do the tests notice small mistakes?

Draws lines by the seed from all lines with arithmetic of ops, mixer, norm, quant, ffn, position,
adapter and optim, puts one mistake into each, in a copy of the sources, and runs the tests that
concern the file until one fails. Prints the survivors. Results are kept: the same command goes on
where the last one stopped.

    seed=1         which lines
    count=60       how many
    only=<text>    files whose path below src/chimera contains it
    minutes=<n>    start no further mutant after that; 0 for no bound
    limit=150      seconds for the tests of one mutant
    known=1        the mistakes of tests/mutants/known.py instead of drawn ones
    again=1        run survivors and timed-out ones again, for instance after writing tests
    list=1         print the mutants and the tests that concern them; run nothing
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.mutants.concern import concerning
from tests.mutants.equal import reason
from tests.mutants.known import known
from tests.mutants.mutate import ROOT, Mutant, draw

#: Files and the libraries without which their tests are skipped.
LIBRARIES = {"ops/fused.py": "fla", "ops/packed_triton.py": "triton"}
DEFAULTS = {
    "seed": "1", "count": "60", "only": "", "minutes": "0", "limit": "150",
    "known": "", "again": "", "list": "", "out": "reports/mutants",
}  # fmt: skip


def main() -> int:
    """Returns the exit code: 1 if any mutant survived."""
    options = DEFAULTS | dict(argument.partition("=")[::2] for argument in sys.argv[1:])
    if unknown := set(options) - set(DEFAULTS):
        print(f"{', '.join(sorted(unknown))}: no such option; {', '.join(DEFAULTS)}")
        return 2
    if options["known"]:
        drawn, total, name = known(ROOT), 0, "known"
    else:
        seed, count = int(options["seed"]), int(options["count"])
        drawn, total = draw(ROOT, seed, count, options["only"] or None)
        name = f"seed{seed}"
    if options["list"]:
        for mutant in drawn:
            print(_show(mutant), *concerning(mutant.file), sep="\n    ")
        return 0
    path = ROOT / options["out"] / f"{name}.json"
    results: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    if options["again"]:
        results = {key: one for key, one in results.items() if one["result"] == "caught"}
    judged = [mutant for mutant in drawn if _judged(mutant)]
    if without := len(drawn) - len(judged):
        print(f"{without} of {', '.join(LIBRARIES)} left out: a library is not installed")
    _run([mutant for mutant in judged if mutant.key not in results], results, path, options)
    return _report(judged, results, total)


def _judged(mutant: Mutant) -> bool:
    """Whether the libraries are installed without which the tests of a file are skipped."""
    library = LIBRARIES.get(mutant.file)
    return library is None or find_spec(library) is not None


def _run(
    open_ones: list[Mutant], results: dict[str, Any], path: Path, options: dict[str, str]
) -> None:
    if not open_ones:
        return
    from tests.mutants.trial import Scratch

    os.nice(10)
    path.parent.mkdir(parents=True, exist_ok=True)
    bound = 60 * float(options["minutes"]) or float("inf")
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        scratch = Scratch(Path(folder), float(options["limit"]))
        for mutant in open_ones:
            if time.monotonic() - began > bound:
                break
            found = scratch.run(mutant.file, mutant.source, *concerning(mutant.file))
            results[mutant.key] = {
                "file": mutant.file, "line": mutant.line, "kind": mutant.kind,
                "before": mutant.before, "after": mutant.after, **found,
            }  # fmt: skip
            path.write_text(json.dumps(results, indent=1, ensure_ascii=False))
            result = f"{found['result']} {found['seconds']} s {found['by']}"
            print(f"{_show(mutant)}: {result}", flush=True)


def _report(drawn: list[Mutant], results: dict[str, Any], total: int) -> int:
    run = {mutant: results[mutant.key] for mutant in drawn if mutant.key in results}
    for mutant, one in run.items():
        if one["result"] != "caught" and reason(mutant):
            one["result"] = "equal"
    counts = Counter(one["result"] for one in run.values())
    lines = f" of {total} lines with arithmetic" if total else ""
    print(f"\n{len(drawn)} drawn{lines}, {len(run)} run", *map(" ".join, _words(counts)), sep=", ")
    for mutant, one in run.items():
        if one["result"] != "caught":
            print(f"{one['result']}: {_show(mutant)}", reason(mutant))
    return int(counts["caught"] + counts["equal"] < len(run))


def _words(counts: Counter[str]) -> list[tuple[str, str]]:
    return [(str(number), result) for result, number in sorted(counts.items())]


def _show(mutant: Mutant) -> str:
    return f"{mutant.file}:{mutant.line} {mutant.kind}: {mutant.before}  ->  {mutant.after}"


if __name__ == "__main__":
    sys.exit(main())
