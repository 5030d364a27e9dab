"""Options of pytest for CI: run as many tests as fit a time, in an order that a word gives.

    pytest -m slow --rotate=$(git rev-parse HEAD) --budget=3300 -rs

With another word (CI gives the commit) other tests come first. What a budget leaves out of one
commit is therefore run for another.
"""

from __future__ import annotations

import hashlib
import time

import pytest

_BEGAN = time.monotonic()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("rotation")
    group.addoption("--rotate", metavar="WORD", help="order files and tests by a hash of this word")
    group.addoption(
        "--budget", type=float, metavar="SECONDS", help="skip the tests that begin after this time"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    word = config.getoption("--rotate")
    if word:
        # By file first: a fixture of a module is set up once.
        items.sort(key=lambda i: (_digits(word, i.location[0]), _digits(word, i.nodeid)))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    budget = item.config.getoption("--budget")
    if budget is not None and time.monotonic() - _BEGAN > budget:
        pytest.skip(f"the budget of {budget:g} s is spent")


def _digits(word: str, name: str) -> str:
    return hashlib.sha256(f"{word} {name}".encode()).hexdigest()
