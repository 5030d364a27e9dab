"""`quant.compute=auto` is measured once, is then part of the configuration, and is found again."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from chimera.config.compose import compose, plain
from chimera.rundir.directory import RunDir
from chimera.rundir.identity import differences, identity
from chimera.train import arithmetic
from chimera.train.run import find_place

LINE = ["scale=smoke", "quant=bitnet158", "norm=none", "logger=none"]
AUTO = [*LINE, "quant.compute=auto"]


def config(*line: str) -> dict[str, Any]:
    return plain(compose(list(line)))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, float]:
    """Seconds that the measurement finds; empty is a measurement that must not happen."""
    monkeypatch.setenv("CHIMERA_RUNS", str(tmp_path))
    seconds = {"simulate": 2.0, "int8": 1.0, "bf16": 3.0}

    def measure(*_: Any) -> dict[str, float]:
        assert seconds, "measured again"
        return dict(seconds)

    monkeypatch.setattr(arithmetic, "measure", measure)
    return seconds


@pytest.mark.parametrize("given", [False, True])
def test_a_run_that_goes_on_keeps_what_it_measured(
    clock: dict[str, float], tmp_path: Path, capsys: Any, given: bool
) -> None:
    line = [*AUTO, f"run_dir={tmp_path / 'mine'}"] if given else AUTO
    place = find_place(config(*line))
    assert place["config"]["quant"]["compute"] == "int8"
    assert "quant.compute=auto is int8" in capsys.readouterr().out
    assert identity(place["config"]) == identity(config(*LINE, "quant.compute=int8"))
    directory = RunDir(Path(place["path"]))
    directory.start(place["config"], line)
    assert directory.config()["measured"]["seconds"] == clock
    clock.clear()
    again = find_place(config(*line))
    assert again == place
    assert RunDir.of(config(*line)).path == directory.path


def test_a_run_that_was_told_its_arithmetic_is_another_choice(clock: dict[str, float]) -> None:
    """`auto` measures although a run of `simulate` is there, which nobody found the fastest."""
    plainly = config(*LINE)
    RunDir.of(plainly).start(plainly, LINE)
    assert find_place(config(*AUTO))["config"]["quant"]["compute"] == "int8"


def test_arithmetic_is_in_the_identity_and_simulate_renames_no_run() -> None:
    names = {c: identity(config(*LINE, f"quant.compute={c}")) for c in ("simulate", "int8", "bf16")}
    assert len(set(names.values())) == 3
    assert names["simulate"] == identity(config(*LINE))
    told = differences(config(*LINE), config(*LINE, "quant.compute=int8"))
    assert told == ["quant.compute=None there, int8 here"]


def test_what_takes_no_integers_says_so(clock: dict[str, float], capsys: Any) -> None:
    clock.clear()
    place = find_place(config("scale=smoke", "quant=hbit", "logger=none", "quant.compute=auto"))
    assert place["config"]["quant"]["compute"] == "simulate"
    (line,) = [x for x in capsys.readouterr().out.splitlines() if "quant.compute" in x]
    assert "per_channel" in line


def test_the_models_own_layers_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every shape with every arithmetic, counted with its loops."""
    timed: list[int] = []
    monkeypatch.setattr(arithmetic, "timed", lambda run, best: timed.append(1) or len(timed))
    settings = config(*LINE, "model.loops=2", "quant.compute=auto")
    choices = arithmetic.choose(settings, adapter=False)
    found = arithmetic.shapes(settings, choices)
    dim = settings["model"]["dim"]
    assert found[dim, dim] == 2 * 4 * settings["model"]["depth"]
    total = arithmetic.measure(settings, Counter({(24, 16): 2, (16, 24): 1}))
    assert total == {"simulate": 2 * 1 + 4, "int8": 2 * 2 + 5, "bf16": 2 * 3 + 6}


def test_a_hopeless_arithmetic_runs_once() -> None:
    runs: list[int] = []
    assert arithmetic.timed(lambda: runs.append(1), best=-1.0) >= 0
    assert len(runs) == 1
    arithmetic.timed(lambda: runs.append(1), best=float("inf"))
    assert len(runs) == 2 + arithmetic.ROUNDS
