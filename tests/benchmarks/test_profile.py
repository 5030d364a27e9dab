"""Profiles: the rate is chosen by validation, finished runs are kept and not repeated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import __main__ as command
from benchmarks import profile


def record(accuracy: float, steps: int, rate: float) -> dict[str, Any]:
    tags = ["profile", "rate", f"lr={rate:g}"]
    return {"metrics": {"val/accuracy": accuracy}, "steps": steps, "tags": tags}


def test_accuracy_chooses_the_rate_then_steps_then_the_lower_rate() -> None:
    worse, late = record(0.5, 100, 1e-3), record(1.0, 600, 3e-3)
    soon, high = record(1.0, 400, 1e-2), record(1.0, 400, 3e-2)
    assert profile.chosen([worse, late]) is late
    assert profile.chosen([late, soon, worse]) is soon
    assert profile.chosen([high, soon]) is soon
    assert profile.rate_of(soon) == 1e-2
    assert profile.chosen([]) is None


def test_mistakes_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    lines = {
        ("profile", "mixer=dleta"): "error: mixer=dleta",
        ("profile", "mixer=delta", "tasks=s6"): "error: tasks=s6",
        ("profile", "mixre=delta"): "error: cannot read 'mixre=delta'",
        ("heap", "mixer=delta"): "error: 'mixer=delta' is no word of heap",
    }
    for words, beginning in lines.items():
        assert command.main(list(words)) == 2
        said = capsys.readouterr().err
        assert said.startswith(beginning)
        assert said.count("\n") == 1


@pytest.mark.slow
def test_a_profile_is_kept_and_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CHIMERA_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("CHIMERA_STORE", str(tmp_path / "store"))
    monkeypatch.setattr(profile, "STEPS", 4)
    monkeypatch.setattr(profile, "RATES", (1e-3, 3e-3))
    monkeypatch.setattr(profile, "SEEDS", (1, 2))
    profile.main(["mixer=linear", "tasks=compression,parity"])
    stored = [check(path) for path in paths(tmp_path / "store")]
    assert len(stored) == 8
    assert not any((tmp_path / "runs").glob("profile*"))
    records = [run.record() for run in stored]
    assert {tuple(r["tags"][:2]) for r in records} == {("profile", "rate"), ("profile", "report")}
    assert {r["seed"] for r in records if r["tags"][1] == "report"} == {1, 2}
    assert all(sum(f.stat().st_size for f in run.path.iterdir()) < 13_000 for run in stored)
    first = capsys.readouterr().out

    def never(*words: str) -> None:
        raise AssertionError("a finished run was trained again")

    monkeypatch.setattr("chimera.api.runs.train", never)
    profile.main(["mixer=linear", "tasks=compression,parity"])
    again = capsys.readouterr().out
    table = again[again.index("linear, position") :]
    assert first.endswith(table)
    assert "| parity |" in table
    assert "no run" not in table
