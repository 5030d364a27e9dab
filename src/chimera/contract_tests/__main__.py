"""Test components: `python -m chimera.contract_tests [--config-dir=DIR] [group=name …] [-x …]`.

Without a component all are tested. Other words (`-x`, `-k padding`) are handed to pytest.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from chimera.config.groups import ZOO, groups, read_folders
from chimera.errors import UserError, nearest, one_line, unknown


class Chosen:
    """Plugin of pytest that leaves the tests in which one of some components takes part."""

    def __init__(self, parts: set[tuple[str, str]]) -> None:
        self.parts = parts

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = [item for item in items if self.parts & tested(item)]


def tested(item: Any) -> set[tuple[str, str]]:
    """Components (group, name) of a test, from its parameters."""
    given = item.callspec.params if hasattr(item, "callspec") else {}
    names = [("a", "one"), ("b", "other"), ("group", "name")]
    found = {(given[group], given[name]) for group, name in names if {group, name} <= given.keys()}
    if "mixer" in given:
        found.add(("mixer", given["mixer"]))
    if "group" in given and "name" not in given:  # a test of all components of a group
        found |= {(given["group"], name) for name in groups()[given["group"]]}
    return found


def parse(words: Sequence[str]) -> set[tuple[str, str]]:
    """Components that `group=name` words name.

    Raises:
        UserError: no such group or component.
    """
    parts = set()
    for word in words:
        group, _, name = word.partition("=")
        if group not in ZOO:
            named = f"{word} names no component; give <group>=<name>, of {', '.join(ZOO)}"
            raise UserError(named + nearest(group, ZOO))
        if name not in groups()[group]:
            raise unknown(group, name, groups()[group])
        parts.add((group, name))
    return parts


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code: pytest's, or 2 for a component that does not exist."""
    try:
        return _test(read_folders(arguments))
    except UserError as error:
        print(f"error: {one_line(error)}", file=sys.stderr)
        return 2


def _test(arguments: Sequence[str]) -> int:
    named = [word for word in arguments if "=" in word and not word.startswith("-")]
    parts = parse(named)
    if find_spec("pytest") is None:
        raise UserError("the contract tests need pytest; pip install pytest")
    import pytest

    own = ["--pyargs", "chimera.contract_tests", "-p", "no:cacheprovider"]
    options = [word for word in arguments if word not in named]
    return int(pytest.main([*own, *options], plugins=[Chosen(parts)] if parts else []))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
