"""The site builds without a warning, and what a page links to is in it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest

from chimera.config.groups import ZOO, groups
from chimera.config.tables import tables
from chimera.paths import ROOT


@pytest.mark.slow
def test_the_site_builds_strictly(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="mkdocs is not installed: pip install .[docs]")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(tmp_path)]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    cards = {file.stem for file in (tmp_path / "cards").glob("*.html")} - {"index"}
    assert cards == {f"{group}-{name}" for group in ZOO for name in groups()[group]}
    pages = {file.stem for file in (tmp_path / "tables").glob("*.html")} - {"index"}
    assert pages == {table.replace("/", "-") for table in tables()}
    assert "times of tables" not in (tmp_path / "scales.html").read_text(encoding="utf-8")
    assert "chimera.contract.Mixer" in (tmp_path / "api.html").read_text(encoding="utf-8")
    for page in tmp_path.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        for address in re.findall(r'(?:href|src)="([^"#:?]+)(?:#[^"]*)?"', text):
            if not address.startswith("/"):
                assert (page.parent / unquote(address)).exists(), f"{page.name}: {address}"
