"""What a convolution gives is computed from the profiles of a pair."""

from __future__ import annotations

from benchmarks.card import controls
from benchmarks.card.records import gather

from tests.benchmarks.test_cards import ATTENTION, CHANCE, RETNET, runs

BETTER = {"mqar": [1.0, 0.99, 1.0, 1.0], "copy": [0.98, 0.97, 0.99, 0.98]}


def test_a_pair_has_its_differences_by_task() -> None:
    profiles = gather(runs(attention=ATTENTION, conv_attention=BETTER, retnet=RETNET))
    text = "\n".join(controls.section(profiles))
    gain = sum(b - a for b, a in zip(BETTER["copy"], ATTENTION["copy"], strict=True)) / 4
    assert f"{gain / (1 - CHANCE):+.2f} (" in text
    assert "mixer-conv_attention.md" in text
    assert "retnet" not in text
    assert "`attention` from 0.9" in controls.sentence(profiles)


def test_without_both_there_is_no_section() -> None:
    assert controls.section(gather(runs(attention=ATTENTION, retnet=RETNET))) == []
