"""`python -m tests.golden [base=<commit>] [name …]`: does this tree compute what a commit computed?

Every combination is trained by both, side by side. Losses, gradient norms, metrics, weights, the
name of the run's directory and what later commands print are compared as text. The default commit
is HEAD, so that changes that are not committed yet are compared with the last commit.
"""

from __future__ import annotations

import csv
import hashlib
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tests import forks
from tests.golden import inputs
from tests.golden.combinations import ALL, ROOT, Combination, units

COLUMNS = ("loss", "grad_norm", "accuracy", "learning_rate", "scaler_scale", "epoch")
#: Metrics and lines of the clock or of the machine's memory.
CLOCK = re.compile(r"second|latency|peak_|memory|tokens/s|\d (ms|s)\b")


def main(words: Sequence[str]) -> int:
    """Returns the exit code: 1 if anything differs."""
    named = dict(word.split("=", 1) for word in words if "=" in word)
    chosen = [word for word in words if "=" not in word]
    if unknown := [*set(named) - {"base"}, *set(chosen) - set(ALL)]:
        print(f"error: {unknown[0]} is no golden run; choose of {', '.join(ALL)}", file=sys.stderr)
        return 2
    differ = 0
    with tempfile.TemporaryDirectory(prefix="golden-") as name:
        tree = Path(name, "tree")
        _git("worktree", "add", "--detach", str(tree), named.get("base", "HEAD"))
        try:
            folders = {tree: inputs.make(Path(name, "base")), ROOT: inputs.make(Path(name, "now"))}
            for one in (one for unit in units(chosen or None) for one in unit):
                old, new = results(one, folders)
                lines = [*differences(old, new), *old["failed"]]
                differ += bool(lines)
                print("\n    ".join([f"{one.name}: {'differs' if lines else 'equal'}", *lines[:8]]))
        finally:
            _git("worktree", "remove", "--force", str(tree))
    print(f"{differ} differ")
    return int(differ > 0)


def _git(*words: str) -> None:
    subprocess.run(("git", "-C", str(ROOT), *words), check=True, capture_output=True)


def results(one: Combination, folders: dict[Path, Path]) -> list[dict[str, Any]]:
    """What each tree makes of a combination in its folder, both at the same time."""
    named = any(each.after == one.name for each in ALL.values())
    train = ["train.py", *one.line, *([f"run_dir={one.name}"] if named else [])]
    found: list[dict[str, Any]] = [{"failed": []} for _ in folders]
    run = partial(_together, one.name, folders, found)
    run([train] * 2)
    places = [
        folder / one.name if named else next((folder / "runs" / one.name).glob("*-*"), folder)
        for folder in folders.values()
    ]
    for mine, place in zip(found, places, strict=True):
        mine |= {"directory": place.name, **gathered(place)}
    for line in one.then:
        said = run([line.replace("{run}", str(place)).split() for place in places])
        for mine, place, text in zip(found, places, said, strict=True):
            shown = text.replace(str(place), "{run}").splitlines()
            mine[line] = [row for row in shown if not CLOCK.search(row)]
    return found


def _together(
    name: str, folders: dict[Path, Path], found: list[dict[str, Any]], lines: list[list[str]]
) -> list[str]:
    """Run a command with each tree; what each printed."""
    started = [
        forks.start(*line, root=tree, cwd=folder, env={
            "CHIMERA_RUNS": str(folder / "runs" / name), "CHIMERA_CACHE": str(folder / "cache"),
        })
        for line, (tree, folder) in zip(lines, folders.items(), strict=True)
    ]  # fmt: skip
    done = [command.wait() for command in started]
    for mine, each in zip(found, done, strict=True):
        if each.returncode:
            mine["failed"].append(f"exit code {each.returncode}: {each.stderr.strip()[-300:]}")
    return [each.stdout for each in done]


def gathered(run: Path) -> dict[str, Any]:
    """Numbers of a run as the text that they are written as, and a hash of its weights."""
    found: dict[str, Any] = {}
    if (run / "steps.csv").exists():
        with (run / "steps.csv").open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        found |= {column: [row.get(column) for row in rows] for column in COLUMNS}
    if (run / "run.json").exists():
        record = json.loads((run / "run.json").read_text(encoding="utf-8"), parse_float=str)
        metrics = {k: v for k, v in record["metrics"].items() if not CLOCK.search(k)}
        found |= {"metrics": metrics, "identity": record.get("identity")}
    if (last := run / "checkpoints" / "last.ckpt").exists():
        state = torch.load(last, map_location="cpu", weights_only=True)["state_dict"]
        flat = [t.detach().contiguous().reshape(-1).view(torch.uint8) for t in state.values()]
        digests = sorted(hashlib.sha256(t.numpy().tobytes()).hexdigest() for t in flat)
        found["weights"] = hashlib.sha256("".join(digests).encode()).hexdigest()[:16]
    return found


def differences(old: dict[str, Any], new: dict[str, Any]) -> Iterator[str]:
    """In what a result differs from the one of before; of a list, the first place."""
    for key in dict.fromkeys([*old, *new]):
        before, now = old.get(key), new.get(key)
        if before == now:
            continue
        if isinstance(before, dict) and isinstance(now, dict):
            yield from (f"{key}.{line}" for line in differences(before, now))
        elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
            at = next(
                i for i, pair in enumerate(zip(before, now, strict=True)) if len(set(pair)) > 1
            )
            yield f"{key} at {at + 1}: {before[at]}, now {now[at]}"
        else:
            yield f"{key}: {str(before)[:100]}, now {str(now)[:100]}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
