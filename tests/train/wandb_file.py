"""Records of an offline W&B file, read by W&B's own tool."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any


def read_back(file: Path) -> list[dict[str, Any]]:
    """All records of a file."""
    words = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(file)]
    shown = subprocess.run(words, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in shown.stdout.splitlines()]


def of(records: list[dict[str, Any]], kind: str) -> list[Any]:
    """What the records of a kind hold."""
    return [record[kind] for record in records if record["type"] == kind]
