"""`python -m tests.golden`: does this code still compute what the code of the base commit did?

Every combination is trained by both, and losses, gradient norms, metrics, weights, identities and
names of directories are compared as text. Results of the base are kept, so that the next comparison
runs this tree only.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from chimera.rundir.identity import NUMERICS
from tests.golden import lanes, table
from tests.golden.combinations import ALL, KNOWN, ROOT, Combination, components, units
from tests.golden.compare import differences, interruptions, recorded

LOSSES = Path(__file__).with_name("losses.json")
Results = dict[str, dict[str, Any]]


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__)
    parser.add_argument(
        "given", nargs="*", metavar="base=COMMIT", help="git revision to agree with"
    )
    parser.add_argument("--base", default=lanes.BASE, help="the same")
    parser.add_argument("--table", action="store_true", help="what was, is, and why, in Markdown")
    parser.add_argument("--base-tree", type=Path, help="a checkout of it, if there is one")
    parser.add_argument("--tree", type=Path, default=ROOT, help="the code that is compared")
    parser.add_argument("--only", help="names of combinations, with commas")
    parser.add_argument("--fresh", action="store_true", help="run the base again, too")
    parser.add_argument("--apart", action="store_true", help="runs share no imports: slow")
    parser.add_argument("--write", action="store_true", help=f"put the base into {LOSSES.name}")
    parser.add_argument("--list", action="store_true", help="the combinations")
    asked = parser.parse_args()
    for word in asked.given:
        key, _, value = word.partition("=")
        if key != "base" or not value:
            parser.error(f"{word}: give base=<commit>")
        asked.base = value
    return asked


def main() -> int:
    """Returns the exit code: 1 if anything differs."""
    asked = arguments()
    if asked.list:
        for one in ALL.values():
            print(f"{one.name}: {' '.join(one.line)}")
        return 0
    names = asked.only.split(",") if asked.only else list(table.MOST_USED) if asked.table else None
    if unknown := set(names or ()) - set(KNOWN):
        sys.exit(f"no such combination: {', '.join(sorted(unknown))}")
    began, work = time.monotonic(), units(names)
    with tempfile.TemporaryDirectory(prefix="golden-") as folder:
        base, now = results(asked, work, Path(folder))
    if asked.table:
        lines, failed = table.of(base, now)
        print("\n".join(lines))
    else:
        failed = show(base, now)
    print(f"{len(now)} combinations, {failed} differ, {time.monotonic() - began:.0f} s")
    if asked.write:
        write(base, lanes.commit_of(asked.base))
    return int(failed > 0)


def results(
    asked: argparse.Namespace, work: list[list[Combination]], folder: Path
) -> tuple[Results, Results]:
    """Those of the base, kept or new, and those of this tree; two processes at a time."""
    commit = lanes.commit_of(asked.base)
    inputs, digest = lanes.given(folder / "inputs")
    kept = lanes.Kept(commit, digest)
    every = [one for unit in work for one in unit]
    there = {one.name: kept.read(one) for one in every}
    old = [unit for unit in work if asked.fresh or not all(there[one.name] for one in unit)]
    preload = not asked.apart
    tree = asked.tree.resolve()
    if old:
        place = asked.base_tree or lanes.worktree(commit)
        first = [("base", place.resolve(), old), ("now", tree, work)]
    else:
        first = [("now", tree, work[::2]), ("now", tree, work[1::2])]
    started = [
        (label, lanes.Lane(label, code, folder / str(i), inputs, jobs(todo), preload=preload))
        for i, (label, code, todo) in enumerate(first)
    ]
    base: Results = {name: found for name, found in there.items() if found}
    now: Results = {}
    for label, lane in started:
        (base if label == "base" else now).update(lane.results())
    for one in every:
        if old:
            kept.write(one, base[one.name])
    return base, now


def jobs(work: list[list[Combination]]) -> list[dict[str, Any]]:
    """As a server takes them."""
    return [lanes.job(one) for unit in work for one in unit]


def show(base: Results, now: Results) -> int:
    """Print what differs; returns in how many combinations."""
    failed = 0
    for name, found in now.items():
        lines = differences(base[name], found)
        if any(code not in (0, -9, 130) for code in base[name]["codes"]):
            lines.append(f"fails in the base: {base[name].get('log', '')}")
        failed += bool(lines)
        for line in lines[:8]:
            print(f"{name:24} {line}")
        if len(lines) > 8:
            print(f"{name:24} and {len(lines) - 8} more")
    for line in interruptions(now):
        print(line)
        failed += 1
    return failed


def write(base: Results, commit: str) -> None:
    """Record the base's numbers for machines like this one."""
    runs = {name: recorded(base[name]) for name in ALL if name in base}
    head = {"commit": commit, "numerics": NUMERICS, **lanes.machine()}
    head["components"] = components(lanes.worktree(commit))
    text = json.dumps({**head, "runs": runs}, indent=1)
    LOSSES.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
