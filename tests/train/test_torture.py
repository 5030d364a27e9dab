"""A few cases of each torture test of `make torture`; each in a process that forks its runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import forks

FEW = {
    "kills": "[resume.single(folder, *case) for case in"
    " [('micro-batch', 7, 0), ('save, between', 5, 2), ('validation', 2, 0)]]",
    "corruptions": "[corruption.case(folder, name) for name in"
    " ['bit flipped in a weight', 'torn save']]",
    "not finite": "[nan.case(folder, 'loss', math.inf, 'fp32')]",
    "broken weight": "[nan.case(folder, 'weight', math.nan, 'fp16')]",
    "skipping": "[limits.skip(folder), limits.too_many(folder)]",
    "full disk": "[limits.full(folder, 'checkpoint', 4), limits.full(folder, 'row', 5)]",
    "exception": "[limits.crash(folder)]",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all cases run: the run that nothing happens to is there once."""
    return tmp_path_factory.mktemp("torture")


@pytest.mark.parametrize("name", FEW)
def test_nothing_is_lost(name: str, folder: Path) -> None:
    program = (
        "import json, math, pathlib\n"
        "from tests.torture import corruption, limits, nan, resume\n"
        f"folder = pathlib.Path({str(folder)!r})\n"
        f"print(json.dumps({FEW[name]}))\n"
    )
    done = forks.run("-c", program)
    assert done.returncode == 0, done.stderr
    for wrong in json.loads(done.stdout.splitlines()[-1]):
        assert not wrong
