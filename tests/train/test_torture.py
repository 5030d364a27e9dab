"""Cases of each promise of `make torture`; each in a process that forks its runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import forks

FEW = [("resume", "kill at save, between 5, 2 workers")]
MORE = [
    ("resume", "kill at micro-batch 7, 0 workers"),
    ("resume", "kill at validation 2, 0 workers"),
    ("corruption", "bit flipped in a weight"),
    ("corruption", "torn save"),
    ("limits", "full at checkpoint 4"),
    ("limits", "full at row 5"),
    ("limits", "a step skipped"),
    ("limits", "too many skipped"),
    ("limits", "an exception"),
    ("nan", "loss in fp32"),
    ("nan", "weight in fp16"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all cases run: the run that nothing happens to is there once."""
    return tmp_path_factory.mktemp("torture")


@pytest.mark.parametrize(
    ("promise", "case"), [*FEW, *(pytest.param(*each, marks=pytest.mark.slow) for each in MORE)]
)
def test_nothing_is_lost(promise: str, case: str, folder: Path) -> None:
    program = (
        "import json, pathlib\n"
        "from tests.torture.__main__ import PROMISES\n"
        f"case = PROMISES[{promise!r}][{case!r}]\n"
        f"print(json.dumps(case(pathlib.Path({str(folder)!r}))))\n"
    )
    done = forks.run("-c", program)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == []
