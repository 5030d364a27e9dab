"""Cases of each torture test of `make torture`; each in a process that forks its runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import forks

FEW = {"kill in a save": "resume.single(folder, 'save, between', 5, 2)"}
MORE = {
    "corruption": "corruption.case(folder, 'bit flipped in a weight')",
    "full disk": "limits.full(folder, 'checkpoint', 4)",
    "skipping": "limits.skip(folder)",
    "exception": "limits.crash(folder)",
    "not finite": "nan.case(folder, 'loss', math.inf, 'fp32')",
    "kill between updates": "resume.single(folder, 'micro-batch', 7, 0)",
    "kill in a validation": "resume.single(folder, 'validation', 2, 0)",
    "torn save": "corruption.case(folder, 'torn save')",
    "broken weight": "nan.case(folder, 'weight', math.nan, 'fp16')",
    "too many skips": "limits.too_many(folder)",
    "full disk at a row": "limits.full(folder, 'row', 5)",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all cases run: the run that nothing happens to is there once."""
    return tmp_path_factory.mktemp("torture")


@pytest.mark.parametrize(
    "name", [*FEW, *(pytest.param(name, marks=pytest.mark.slow) for name in MORE)]
)
def test_nothing_is_lost(name: str, folder: Path) -> None:
    program = (
        "import json, math, pathlib\n"
        "from tests.torture import corruption, limits, nan, resume\n"
        f"folder = pathlib.Path({str(folder)!r})\n"
        f"print(json.dumps({(FEW | MORE)[name]}))\n"
    )
    done = forks.run("-c", program)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == []
