"""Where a report's runs came from: commits, machines, and the words that make them again."""

from __future__ import annotations

from collections import Counter
from typing import Any

from chimera.report.cells import Cell
from chimera.report.summary import Summary


def commit(environment: dict[str, Any], digits: int = 40) -> str:
    """Commit of a run's code, and whether files were changed since."""
    git = environment.get("git") or {}
    if not git.get("commit"):
        return "not in git"
    return git["commit"][:digits] + (" with changes not committed" if git.get("changed") else "")


def machine(environment: dict[str, Any]) -> str:
    """Processor, cores, GPU, torch."""
    parts = [
        environment.get("processor"),
        f"{environment['cpus']} cores" if environment.get("cpus") else None,
        environment.get("gpu") or "no GPU",
        environment.get("machine"),
        f"Python {environment['python']}" if environment.get("python") else None,
        f"torch {environment['packages']['torch']}"
        if "torch" in environment.get("packages", {})
        else None,
    ]
    return ", ".join(part for part in parts if part)


def counted(of: list[Cell], what: Any) -> list[tuple[str, int]]:
    """Each different answer and how many started runs give it."""
    return sorted(Counter(what(cell.environment) for cell in of if cell.environment).items())


def train_command(summary: Summary) -> str:
    """Runs what is missing of the table."""
    seeds = ",".join(map(str, summary.seeds))
    words = [f"+{summary.table.paper}={summary.table.name}", *summary.words, f"seed={seeds}"]
    return f"python train.py -m {' '.join(words)}"


def report_command(summary: Summary) -> str:
    """Makes the report of what is there."""
    seeds = ",".join(map(str, summary.seeds))
    return f"python -m chimera.report {' '.join([summary.table.path, *summary.words])} seed={seeds}"
