"""`python -m benchmarks cards` from a store of records that the test puts there."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from benchmarks.card import page
from benchmarks.card.stored import read
from benchmarks.profile import RATES, SEEDS, chosen, overrides, rate_of

from benchmarks import cards
from chimera.config.compose import compose, plain
from chimera.errors import UserError
from chimera.rundir.identity import identity

ACCURACY = {"attention": {"mqar": 0.9, "parity": 0.5}, "delta": {"mqar": 0.8, "parity": 0.9}}
BEST = RATES[1]


def record(config: dict[str, Any], folder: Path, store: Path, rate: float, seed: int) -> None:
    """Put a finished run of this configuration, with another rate and seed, into a store."""
    config = copy.deepcopy(config)
    config["optim"]["lr"], config["seed"] = rate, seed
    run = folder / f"{config['name']}-{identity(config)}"
    run.mkdir(parents=True)
    choices = config["choices"]
    task = choices["data"].removeprefix("mad/")
    accuracy = ACCURACY[choices["mixer"]][task] + 0.01 * seed - 0.1 * (rate != BEST)
    metrics = {"test/accuracy": accuracy, "val/accuracy": accuracy, "val/loss": 1.0}
    metrics |= {"val/chance_accuracy": 0.1, "val/majority_accuracy": 0.12}
    metrics |= {"test/accuracy_1x": 1.0, "test/accuracy_6x": accuracy}
    tags = ["profile", "report" if seed else "rate", f"lr={rate:g}"]
    facts = {"identity": identity(config), "choices": choices, "seed": seed, "tags": tags}
    facts |= {"metrics": metrics, "steps": 300, "wall_seconds": 36.0}
    about = {"processor": "Test CPU", "git": {"commit": "a" * 40}}
    (run / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    (run / "run.json").write_text(json.dumps(facts))
    (run / "environment.json").write_text(json.dumps(about))
    (run / "status.json").write_text(json.dumps({"state": "DONE"}))
    add(run, store)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    positions = {"attention": "rope", "delta": "none"}  # as `position` finds by building them
    monkeypatch.setattr("benchmarks.profile._POSITIONS", positions)
    for mixer, by_task in ACCURACY.items():
        for task in by_task:
            config = plain(compose(overrides(mixer, task, BEST, 0)))
            runs = [(rate, 0) for rate in RATES] + [(BEST, seed) for seed in SEEDS[:2]]
            for rate, seed in runs:
                record(config, tmp_path / "made", tmp_path / "store", rate, seed)
    return tmp_path / "store"


@pytest.mark.slow
def test_cards_are_written_from_a_store(
    store: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(page, "described", lambda name: f"mixer={name}")
    profiles = read(store)
    assert profiles.left_out == ()
    assert profiles.by_mixer["attention"].position == "rope"
    result = profiles.by_mixer["delta"].results["parity"]
    assert result.rate == BEST
    assert result.accuracies == {1: pytest.approx(0.91), 2: pytest.approx(0.92)}
    assert result.groups == {"1x": 1.0, "6x": pytest.approx(0.915)}
    assert result.solved == [300, 300]
    reported = [run.record for run in result.runs.values()]
    assert rate_of(chosen(reported) or {}) == BEST
    broken = next(path for path in paths(store) if "parity-delta" in path.name)
    (broken / "run.json").write_text("{}")
    cards.main([f"store={store}", f"to={tmp_path / 'docs'}"])
    said = capsys.readouterr().out
    assert "2 cards and choose.md: attention, delta" in said
    assert "left out: profile-parity-delta" in said
    written = sorted(path.name for path in (tmp_path / "docs/cards").iterdir())
    assert written == [f"mixer-{m}.{form}" for m in ACCURACY for form in ("md", "svg")]
    text = (tmp_path / "docs/choose.md").read_text(encoding="utf-8")
    assert "| mqar | [`attention`](cards/mixer-attention.md) |" in text
    assert "## Records left out" in text


def test_an_empty_store_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match="has no record of a profile"):
        cards.main([f"store={tmp_path}"])
    assert not capsys.readouterr().out
