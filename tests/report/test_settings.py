"""What a report says about the settings of its runs."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from chimera.report.settings import in_half


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
    text = " ".join(in_half(summary))
    assert bool(text) == bool(said)
    assert re.search(said, text)
