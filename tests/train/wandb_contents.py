"""List what an offline W&B run holds: `python -m tests.train.wandb_contents <run directory>`.

W&B's own tool reads the file; nothing is uploaded.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any


def records(file: Path) -> list[dict[str, Any]]:
    """All records of a `.wandb` file, in their order."""
    viewer = str(Path(sys.executable).with_name("wandb"))
    words = [viewer, "leet", "inspect", "--json", str(file)]
    shown = subprocess.run(words, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in shown.stdout.splitlines()]


def contents(found: list[dict[str, Any]]) -> dict[str, Any]:
    """What the records hold.

    Args:
        found: of one run.

    Returns:
        `run` (name, group, job type, tags), `config` keys, `axes` (metrics that are defined),
        `charts` (number of points by metric), `media` (kind by key), `artifacts` (files by name),
        `summary` keys.
    """
    held: dict[str, Any] = {"config": [], "axes": [], "media": {}, "artifacts": {}}
    charts: Counter[str] = Counter()
    summary: set[str] = set()
    for record in found:
        value = record.get(record["type"], {})
        if record["type"] == "run":
            names = ("display_name", "run_group", "job_type", "tags")
            held["run"] = {name: value.get(name) for name in names}
            held["config"] = sorted(set(value["config"]["update"]) - {"_wandb"})
        elif record["type"] == "metric":
            held["axes"].append(value.get("name") or value["glob_name"])
        elif record["type"] == "history":
            item = value["item"]
            kinds = {
                key.removesuffix("._type"): item[key] for key in item if key.endswith("._type")
            }
            held["media"] |= kinds
            parts = tuple(f"{key}." for key in kinds)
            charts.update(k for k in item if not k.startswith(("_", *parts)))
        elif record["type"] == "artifact":
            files = value.get("manifest", {}).get("contents", [])
            held["artifacts"][value["name"]] = [file["path"] for file in files]
        elif record["type"] == "summary":
            summary |= {key for key in value.get("update", {}) if not key.startswith("_")}
    return {**held, "charts": dict(sorted(charts.items())), "summary": sorted(summary)}


def main(place: Path) -> None:
    """Print the contents of a run."""
    files = [place] if place.is_file() else sorted(place.glob("wandb/offline-run-*/*.wandb"))
    for file in files:
        print(file)
        print(json.dumps(contents(records(file)), indent=2, ensure_ascii=False))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
