"""`--rotate` orders tests by a word, `--budget` stops starting tests: `tests/rotation.py`."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests import forks
from tests.rotation import pytest_collection_modifyitems

TESTS = """
import pytest

@pytest.fixture(scope="module")
def late():
    raise AssertionError("no fixture is set up after the budget")

@pytest.mark.parametrize("n", range(8))
def test_one(n, late): pass
"""
SAMPLED = """
import pytest

@pytest.mark.sampled(2, each=("mixer",))
@pytest.mark.parametrize("mixer", ["a", "b", "c"])
@pytest.mark.parametrize("n", range(9))
def test_one(mixer, n): pass
"""


def order(word: str | None, sizes: dict[str, int]) -> list[str]:
    """Names of the tests of these files, each with so many, in the order of a word."""
    names = [(file, f"{file}::test[{n}]") for file, size in sizes.items() for n in range(size)]
    items: list[Any] = [
        SimpleNamespace(location=(f, 0, ""), nodeid=n, get_closest_marker=lambda _: None)
        for f, n in names
    ]
    config: Any = SimpleNamespace(getoption={"--rotate": word}.get)
    pytest_collection_modifyitems(config, items)
    return [item.nodeid for item in items]


def test_a_word_gives_an_order() -> None:
    sizes = {"a.py": 40, "b.py": 8, "c.py": 8}
    first, again, other = (order(word, sizes) for word in ("one", "one", "two"))
    assert first == again != other
    assert first != order(None, sizes)
    assert sorted(first) == sorted(other) == sorted(order(None, sizes))


def run_pytest(folder: Path, *words: str) -> str:
    """What pytest says of the tests of a folder."""
    plugins = ["-p", "tests.rotation", "-p", "no:cacheprovider"]
    alone = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = forks.run("-m", "pytest", *words, *plugins, cwd=folder, env=alone)
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_after_the_budget_tests_are_skipped_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text(TESTS)
    (tmp_path / "test_b.py").write_text("def test_passes(): pass")
    assert "1 passed" in run_pytest(tmp_path, "test_b.py", "--budget=600")
    spent = run_pytest(tmp_path, "test_a.py", "--budget=0", "-rs")
    assert "8 skipped" in spent
    assert "the budget of 0 s is spent" in spent


def test_a_sample_has_cases_of_each_and_the_other_cases_are_slow(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text(SAMPLED)
    assert "6 passed, 21 deselected" in run_pytest(tmp_path, "-m", "not slow")
    assert "21 passed, 6 deselected" in run_pytest(tmp_path, "-m", "slow")
