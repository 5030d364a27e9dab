"""The golden runs choose every component, and a handful of them still gives the recorded numbers.

All of them against the base commit, and what differs where: `python -m tests.golden`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from chimera.rundir.identity import NUMERICS
from tests.golden import compare, lanes, table
from tests.golden.combinations import ALL, ROOT, choices, missing, sources, units
from tests.golden.inputs import text_is_what_the_rule_gives

LOSSES: dict[str, Any] = json.loads(Path(__file__).with_name("losses.json").read_text())
HANDFUL = ["attention", "retnet", "routed-top1", "sora", "fp16", "taught", "killed"]


def test_every_component_of_the_base_is_in_a_golden_run() -> None:
    assert not missing(LOSSES["components"])


def test_what_the_runs_have_to_have() -> None:
    lines = [" ".join(one.line) for one in ALL.values()]
    for word in (
        "data.num_workers=2",
        "trainer.accumulate_grad_batches=2",
        "model.dropout=0.1",
        "precision=bf16",
        "precision=fp16",
        "model.loops=3",
        "model.gradient_checkpointing=true",
        "init_from=pretrained",
        "task.teacher=pretrained",
        "model=hf",
    ):
        assert any(word in line for line in lines), word
    assert {one.signal for one in ALL.values()} == {None, "KILL", "TERM"}
    assert not any(choices(one.line)["data"] == "pydocs" for one in ALL.values())


def test_what_others_start_from_comes_first() -> None:
    found = units(["cola", "retnet", "taught"])
    assert [[one.name for one in unit] for unit in found] == [
        ["pretrained", "cola", "taught"],
        ["retnet"],
    ]
    assert sources() == {"pretrained"}


def test_the_text_is_what_its_rule_gives() -> None:
    assert text_is_what_the_rule_gives()


def test_all_runs_are_recorded() -> None:
    assert list(LOSSES["runs"]) == list(ALL)
    assert LOSSES["commit"] == lanes.BASE


def test_a_difference_is_found_where_it_begins() -> None:
    old = {"codes": [0], "steps": {"loss": ["3.0", "2.0", "1.0"]}, "metrics": {"val/loss": "1.5"}}
    new = {"codes": [0], "steps": {"loss": ["3.0", "2.5", "1.0"]}, "metrics": {"val/loss": "1.6"}}
    assert compare.differences(old, old) == []
    assert compare.differences(old, new) == [
        "loss at step 2: 2.0, now 2.5",
        "metrics.val/loss: 1.5, now 1.6",
    ]
    short = {**old, "steps": {"loss": ["3.0"]}, "files": ["run.json"]}
    assert compare.differences({**old, "files": ["run.json", "x"]}, short) == [
        "loss: 3 steps, now 1",
        "files that are gone: x",
    ]


def test_a_table_names_causes_and_counts_what_has_none() -> None:
    def found(*losses: float) -> dict[str, Any]:
        steps = [str(loss) for loss in losses]
        metrics = {"val/loss": steps[-1]}
        return {"codes": [0], "steps": {"loss": steps, "grad_norm": steps}, "metrics": metrics}

    old = dict.fromkeys(("default", "whole", "mamba"), found(4.0, 2.0))
    lines, failed = table.of(old, old)
    assert not failed
    assert lines[2] == "| `default` |  | equal to the bit | 2.000000 | 2.000000 |  |"
    lines, failed = table.of(old, {**old, "whole": found(4.0, 3.0), "mamba": found(4.0, 1.0)})
    assert not failed
    assert "| `mamba` | 2 | 5.0e-01 | 2.000000 | 1.000000 | w |" in lines
    assert "| `whole` | 2 | 5.0e-01 | 2.000000 | 3.000000 | d, w, l |" in lines
    lines, failed = table.of(old, {**old, "default": found(4.0, 2.1)})
    assert failed == 1
    assert lines[-1] == "- default: no cause is known"


@pytest.mark.slow
@pytest.mark.skipif(LOSSES.get("numerics", 1) != NUMERICS, reason="recorded of other numerics")
def test_a_handful_gives_the_recorded_numbers(tmp_path: Path) -> None:
    inputs, _ = lanes.given(tmp_path / "inputs")
    work = [lanes.job(one) for unit in units(HANDFUL) for one in unit]
    found = lanes.Lane("golden", ROOT, tmp_path / "runs", inputs, work).results()
    for name, one in found.items():
        assert all(code in (0, -9) for code in one["codes"]), one.get("log")
        assert one["directory"] == LOSSES["runs"][name]["directory"]  # on every machine
    here = lanes.machine()
    if here != {key: LOSSES[key] for key in here}:
        pytest.skip(f"losses.json is of {LOSSES['cpu']}, torch {LOSSES['torch']}: no comparison")
    for name, one in found.items():
        assert compare.recorded(one) == LOSSES["runs"][name], name
