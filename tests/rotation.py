"""Options of pytest for CI: run as many tests as fit a time, in an order that a word gives.

    pytest -m slow --rotate=$(git rev-parse HEAD) --budget=3300 -rs

With another word (CI gives the commit) other tests come first. What a budget leaves out of one
commit is therefore run for another. No file comes first as a whole: some have hundreds of tests.
"""

from __future__ import annotations

import hashlib
import time
from collections import defaultdict

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


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
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


def _digits(word: str, name: str) -> str:
    return hashlib.sha256(f"{word} {name}".encode()).hexdigest()
