"""The page on the plateau compares records of one setting only."""

from __future__ import annotations

import math
from copy import deepcopy

from benchmarks.stored import Pair

from benchmarks import plateau


def record(mixer: str, *perplexities: float, position: str = "learned") -> Pair:
    """Configuration and record of a masked model, validated every 200 steps."""
    parts = {"mixer": mixer, "quant": "none", "position": position}
    config = {
        "choices": plateau.CHOICES | parts,
        "seed": 0,
        "trainer": {"max_steps": 600, "val_check_interval": 200},
    }
    validations = [[200 * at, math.log(value)] for at, value in enumerate(perplexities, 1)]
    metrics = {"val/unigram_perplexity": 622.2}
    return config, {"validations": validations, "metrics": metrics}


def test_the_lowest_is_first_and_other_settings_are_left_out() -> None:
    pairs = [record("attention", 610.0, 600.0, 580.0), record("retnet", 550.0, 400.0, 250.0)]
    for change in ({"seed": 1}, {"trainer": {"max_steps": 800, "val_check_interval": 200}}):
        config, found = deepcopy(record("mamba", 1.0, 1.0, 1.0))
        pairs.append((config | change, found))
    pairs.append(record("attention", 500.0, 300.0, 150.0, position="rope"))
    head, _, *lines = plateau.page(pairs).splitlines()
    assert head == "| added to the line | after 200 steps | after 400 steps | after 600 steps |"
    assert lines == [
        "| `mixer=attention position=rope` | 500 | 300 | 150 |",
        "| `mixer=retnet` | 550 | 400 | 250 |",
        "| `mixer=attention` | 610 | 600 | 580 |",
        "",
        "A unigram model has 622 on the same tokens.",
    ]


def test_nothing_is_said_without_records() -> None:
    assert plateau.page([]) == "No records yet.\n"
