"""The tools of the tests: forked commands, the order and the budget of slow tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import forks
from tests.rotation import pytest_collection_modifyitems

REPORT = """
import atexit, json, os, sys, threading, time
atexit.register(lambda: print("at exit"))
threading.Thread(target=lambda: (time.sleep(0.05), print("thread"))).start()
print(json.dumps([sys.argv[1:], os.getcwd(), os.environ.get("A"), os.environ.get("B")]))
print(__name__, sys.stdin.read() == "", sys.stdout.isatty(), file=sys.stderr)
"""


def test_arguments_folder_environment_and_output_are_those_of_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A", "of the test")
    words = ["-c", REPORT, "one", "two words"]
    forked = forks.run(*words, cwd=tmp_path, env={"B": "added"})
    real = subprocess.run(
        [sys.executable, *words],
        cwd=tmp_path,
        env=os.environ | {"B": "added"},
        capture_output=True,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    assert (forked.returncode, forked.stdout) == (real.returncode, real.stdout)
    assert forked.stderr == real.stderr == "__main__ True False\n"
    assert "thread\nat exit\n" in forked.stdout


def test_a_command_changes_nothing_for_the_next() -> None:
    change = "import os, sys; os.environ['C'] = '1'; sys.left = 1; import random, torch"
    change += "; random.seed(7); torch.manual_seed(7); torch.set_default_dtype(torch.float64)"
    look = (
        "import os, random, sys, numpy, torch;"
        "print(os.environ.get('C'), hasattr(sys, 'left'), torch.get_default_dtype());"
        "print(random.random(), numpy.random.rand(), torch.rand(1).item())"
    )
    assert forks.run("-c", change).returncode == 0
    first, second = (forks.run("-c", look).stdout.splitlines() for _ in range(2))
    assert first[0] == second[0] == "None False torch.float32"
    pairs = zip(first[1].split(), second[1].split(), strict=True)
    assert all(a != b for a, b in pairs)  # as in two new processes


def test_another_checkout_has_its_own_package(tmp_path: Path) -> None:
    (tmp_path / "src/chimera").mkdir(parents=True)
    (tmp_path / "src/chimera/__init__.py").write_text("HERE = True\n")
    (tmp_path / "run.py").write_text("import chimera, sys; print(chimera.HERE, sys.argv[1:])\n")
    done = forks.run("run.py", "x", root=tmp_path)
    assert done.stdout == "True ['x']\n", done.stderr


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
