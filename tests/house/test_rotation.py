"""`--rotate` orders tests by a word, `--budget` stops starting tests: `tests/rotation.py`."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests import forks

TESTS = """
import time
import pytest

@pytest.fixture(scope="module")
def late():
    raise AssertionError("no fixture is set up after the budget")

@pytest.mark.parametrize("n", range(8))
def test_one(n): pass
"""


def pytest_in(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    plugins = ["-p", "tests.rotation", "-p", "no:cacheprovider"]
    alone = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return forks.run("-m", "pytest", str(folder), *plugins, *options, cwd=folder, env=alone)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in "abc":
        (tmp_path / f"test_{name}.py").write_text(TESTS)
    return tmp_path


def order(folder: Path, word: str) -> list[str]:
    done = pytest_in(folder, f"--rotate={word}", "--collect-only", "-q")
    return [line for line in done.stdout.splitlines() if "::" in line]


def test_a_word_gives_an_order_of_files_and_of_tests_in_a_file(folder: Path) -> None:
    first, again, other = order(folder, "one"), order(folder, "one"), order(folder, "two")
    assert first == again != other
    assert set(first) == set(other)
    assert len(first) == 24
    files = [line.partition("::")[0] for line in first]
    assert files == sorted(files, key=files.index)  # a file's tests follow one another
    assert first[:8] != sorted(first[:8])


def test_after_the_budget_tests_are_skipped_with_their_number(folder: Path) -> None:
    assert "24 passed" in pytest_in(folder, "--budget=600").stdout
    for file in folder.iterdir():
        file.write_text(TESTS.replace("(n)", "(n, late)"))
    spent = pytest_in(folder, "--budget=0", "-rs")
    assert spent.returncode == 0
    assert "24 skipped" in spent.stdout
    assert "the budget of 0 s is spent" in spent.stdout
