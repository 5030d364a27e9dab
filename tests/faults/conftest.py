"""Cases that are still wrong are listed in open.txt; whoever mends one takes its line away."""

from pathlib import Path

import pytest

OPEN = set((Path(__file__).parent / "open.txt").read_text().splitlines())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/faults/" in item.nodeid and item.nodeid.split("tests/faults/")[1] in OPEN:
            item.add_marker(pytest.mark.xfail(strict=True))
