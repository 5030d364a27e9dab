"""The golden runs choose every component, and a difference is found where it begins."""

from __future__ import annotations

import pytest

from chimera.config.groups import ZOO
from chimera.contract_tests.zoo import names
from tests.golden.__main__ import differences, main
from tests.golden.combinations import ALL, units


def test_every_component_is_in_a_golden_run() -> None:
    words = {word for one in ALL.values() for word in one.line}
    missing = {f"{group}={name}" for group in ZOO for name in names(group)} - words
    # What every run has unless it says otherwise; head_only needs a classifier.
    defaults = {"mixer=attention", "norm=layernorm", "quant=none", "ffn=mlp", "adapter=none"}
    assert missing <= defaults | {"adapter=head_only"}


def test_what_others_start_from_comes_first() -> None:
    found = [[one.name for one in unit] for unit in units(["cola", "retnet", "taught"])]
    assert found == [["pretrained", "cola", "taught"], ["retnet"]]


def test_a_difference_is_found_where_it_begins() -> None:
    old = {"loss": ["3.0", "2.0"], "metrics": {"val/loss": "1.5"}, "weights": "a"}
    new = {"loss": ["3.0", "2.5"], "metrics": {"val/loss": "1.6"}, "weights": "b"}
    assert not list(differences(old, old))
    assert list(differences(old, new)) == [
        "loss at 2: 2.0, now 2.5",
        "metrics.val/loss: 1.5, now 1.6",
        "weights: a, now b",
    ]
    assert list(differences({"loss": ["1"]}, {"loss": []})) == ["loss: ['1'], now []"]


@pytest.mark.slow
def test_a_run_of_each_kind_equals_that_of_the_last_commit(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In a fresh clone; where files have changed that concern them, this says what they change."""
    assert main(["retnet", "cola-sora", "fp16"]) == 0, capsys.readouterr().out


def test_a_name_that_is_none_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nonsense"]) == 2
    assert "nonsense is no golden run" in capsys.readouterr().err
