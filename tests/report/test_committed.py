"""The committed reports are those that their commands write from the committed records."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from chimera.cli.table import report as main
from chimera.paths import EXPERIMENTS

REPORTS = sorted(EXPERIMENTS.glob("*/*/results/*/report.md"))


def test_the_reports_are_found() -> None:
    assert len(REPORTS) >= 21


@pytest.mark.slow
@pytest.mark.parametrize("file", REPORTS, ids=lambda file: "-".join(file.parts[-5:-1]))
def test_a_report_is_written_from_the_records_by_the_command_that_it_names(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHIMERA_RUNS", str(tmp_path / "no-runs"))
    monkeypatch.setenv("CHIMERA_RECORDS", str(EXPERIMENTS))
    monkeypatch.chdir(tmp_path)
    report = file.read_text(encoding="utf-8")
    found = re.findall(r"^((?:\w+=\S+ )*)chimera report (.*)$", report, re.MULTILINE)
    ((variables, command),) = found
    for variable in shlex.split(variables):
        name, _, value = variable.partition("=")
        monkeypatch.setenv(name, value)
    assert main([*shlex.split(command), "out=out", "forms=png"]) == 0
    for name in ("report.md", "report.csv", "report.tex"):
        written = (tmp_path / "out" / name).read_text(encoding="utf-8")
        assert file.with_name(name).read_text(encoding="utf-8") == written, name
