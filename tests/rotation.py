"""Which tests run for a commit: a sample of alike cases, and as many slow tests as fit a time.

`@pytest.mark.sampled(n, each=("mixer",))` keeps n cases of a parametrised test for each mixer. The
commit chooses them. The other cases become slow tests: `make test` leaves them out, `make
test-rest` takes them when their turn comes, and `make test-all` runs all of them.

    pytest -m slow --rotate=$(git rev-parse HEAD) --budget=3300 -rs

With another word (CI gives the commit) other tests come first. What a budget leaves out of one
commit is therefore run for another. No file comes first as a whole: some have hundreds of tests.
"""

from __future__ import annotations

import hashlib
import subprocess
import time
from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

#: Tests of a file that follow one another, so that a fixture of a module serves several.
TOGETHER = 16
_BEGAN = time.monotonic()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("rotation")
    group.addoption("--rotate", metavar="WORD", help="order tests by a hash of this word")
    group.addoption(
        "--budget", type=float, metavar="SECONDS", help="skip the tests that begin after this time"
    )


@pytest.hookimpl(tryfirst=True)  # before `-m` reads the marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    sample(items, commit())
    word = config.getoption("--rotate")
    if not word:
        return
    items.sort(key=lambda item: _digits(word, item.nodeid))
    pieces: dict[str, list[list[pytest.Item]]] = defaultdict(list)
    for item in items:
        of_file = pieces[item.location[0]]
        if not of_file or len(of_file[-1]) == TOGETHER:
            of_file.append([])
        of_file[-1].append(item)
    every = [piece for of_file in pieces.values() for piece in of_file]
    every.sort(key=lambda piece: _digits(word, f"piece {piece[0].nodeid}"))
    items[:] = [item for piece in every for item in piece]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    budget = item.config.getoption("--budget")
    if budget is not None and time.monotonic() - _BEGAN > budget:
        pytest.skip(f"the budget of {budget:g} s is spent")


@cache
def commit() -> str:
    """The hash of the checkout's commit; empty outside a repository, where the sample is fixed."""
    words = ("git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD")
    try:
        return subprocess.run(words, capture_output=True, text=True).stdout.strip()
    except OSError:
        return ""


def sample(items: Sequence[pytest.Item], word: str) -> None:
    """Mark the cases of sampled tests as slow that the word does not choose."""
    alike: dict[tuple[object, ...], list[pytest.Item]] = defaultdict(list)
    for item in items:
        mark = item.get_closest_marker("sampled")
        if mark and not item.get_closest_marker("slow"):
            given = item.callspec.params  # type: ignore[attr-defined]  # of a parametrised test
            each = [str(given[name]) for name in mark.kwargs.get("each", ())]
            alike[(mark.args[0], item.nodeid.partition("[")[0], *each)].append(item)
    for (count, *_), cases in alike.items():
        cases.sort(key=lambda item: _digits(word, item.nodeid))
        for item in cases[count:]:  # type: ignore[misc]
            item.add_marker(pytest.mark.slow)


def _digits(word: str, name: str) -> str:
    return hashlib.sha256(f"{word} {name}".encode()).hexdigest()
