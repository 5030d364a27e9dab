"""What a report says about the settings of its runs."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from chimera.report.notes import in_half
from chimera.rundir.portable import portable


@pytest.mark.parametrize(
    ("used", "said"),
    [
        (["fp32"], ""),
        (["fp16", "fp32"], "up to 1/2048"),
        (["bf16"] * 2, "Trained in bf16: .*1/256"),
    ],
)
def test_half_precision_is_named_with_its_error(used: list[str], said: str) -> None:
    summary: Any = SimpleNamespace(cells=[SimpleNamespace(config={"precision": p}) for p in used])
    text = in_half(summary)
    assert bool(text) == bool(said)
    assert re.search(said, text)


def test_a_path_of_one_machine_is_not_printed() -> None:
    words = ["data.path=/home/ada/texts/glue", "a=[/x/y.txt,/z]", "data=glue", "lr=1/2", "./a/b"]
    expected = ["data.path=path/to/glue", "a=[path/to/y.txt,path/to/z]", "data=glue", "lr=1/2"]
    assert [portable(word) for word in words] == [*expected, "./a/b"]
