"""Runs with more steps: their rate is the profile's, and what they say of an order."""

from __future__ import annotations

from dataclasses import replace

import pytest
from benchmarks.card import longer
from benchmarks.card.records import Profiles, Run, gather

from benchmarks import __main__ as command
from benchmarks import longer as runner
from benchmarks import profile
from tests.benchmarks.test_cards import ATTENTION, DELTA, run, runs


def more(mixer: str, accuracies: list[float], *, rate: float = 3e-3) -> list[Run]:
    found = [run(mixer, "copy", seed, a, rate=rate) for seed, a in enumerate(accuracies, 1)]
    return [replace(one, limit=3200) for one in found]


@pytest.fixture
def profiles() -> Profiles:
    return gather(runs(attention=ATTENTION, delta=DELTA))


def test_scores_stand_beside_the_profile(profiles: Profiles) -> None:
    other_rate = more("delta", [0.2, 0.2, 0.2, 0.2], rate=1e-2)
    rows = longer.gather([*more("delta", [0.9, 0.92, 0.91, 0.89]), *other_rate], profiles)
    assert [(row.mixer, row.task, row.steps, row.solved) for row in rows] == [
        ("delta", "copy", 3200, 4)  # the fixture's runs end after 800 steps
    ]
    text = "\n".join(longer.section(rows, profiles))
    assert "| copy | [`delta`](cards/mixer-delta.md) | 0.38 | 3,200 | 0.88 |" in text
    assert "| +0.50 (" in text
    said = longer.sentence(rows, profiles, ["attention", "delta"])
    assert "with 3,200 steps in place of 800 `delta` goes from 0.38 to 0.88 on copy." in said
    assert longer.sentence(rows, profiles, ["attention"]) == ""
    assert longer.section([], profiles) == []
    assert longer.gather(more("retnet", [0.9]), profiles) == []  # without a profile


def test_an_order_is_explained_or_left_open(profiles: Profiles) -> None:
    low, high = [0.5, 0.52, 0.51, 0.49], [0.9, 0.91, 0.92, 0.93]
    cases = {
        "the order is one of the budget": (high, low),
        "steps alone do not explain it. Open.": (low, high),
        "no difference is shown": (low, [0.49, 0.53, 0.52, 0.48]),
    }
    for said, (first, second) in cases.items():
        rows = longer.gather([*more("delta", first), *more("attention", second)], profiles)
        assert said in longer.explained(rows, "copy", "delta", "attention")
    assert longer.explained(rows, "mqar", "delta", "attention") == "Open."
    assert longer.explained(rows[:1], "copy", "delta", "attention") == "Open."


def test_only_steps_and_name_differ_from_the_profile() -> None:
    usual = profile.overrides("delta+conv=4", "s5", 1e-2, 3)
    own = runner.overrides("delta+conv=4", "s5", 1e-2, 3, 3200)
    changed = [(a, b) for a, b in zip(usual, own, strict=True) if a != b]
    assert changed == [
        ("trainer.max_steps=800", "trainer.max_steps=3200"),
        ("name=profile-s5-delta+conv.4", "name=longer-s5-delta+conv.4"),
        ("tags=[profile,report,'lr=0.01']", "tags=[longer,report,'lr=0.01']"),
    ]


def test_mistakes_are_one_line(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("CHIMERA_STORE", str(tmp_path_factory.mktemp("store")))
    lines = {
        ("longer", "mixer=delta", "tasks=s6"): "error: tasks=s6",
        ("longer", "mixer=delta", "tasks=s5", "steps=800"): "error: steps=800 are not more",
        ("longer", "mixer=delta", "tasks=s5"): "error: the run store lacks the profile of delta",
    }
    for words, beginning in lines.items():
        assert command.main(list(words)) == 2
        said = capsys.readouterr().err
        assert said.startswith(beginning)
        assert said.count("\n") == 1
