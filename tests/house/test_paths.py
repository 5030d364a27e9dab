"""No file of the project names a folder of the machine it was written on."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLACES = ("conf", "docs", "experiments", "notebooks", "src", "benchmarks", "README.md")
SUFFIXES = {".py", ".md", ".yaml", ".json", ".csv", ".tex", ".ipynb", ".svg", ".txt"}


def test_no_path_of_one_machine() -> None:
    files = [file for place in PLACES for file in (ROOT / place, *(ROOT / place).rglob("*"))]
    found = {
        f"{file.relative_to(ROOT)}: {match[0]}"
        for file in files
        if file.suffix in SUFFIXES and file.is_file()
        for match in re.finditer(
            r"(?<![\w.>}])/(?:work|root|home|mnt|Users)/[\w/.-]+", file.read_text()
        )
    }
    assert not found
