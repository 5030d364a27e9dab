"""`chimera report <paper>/<table>`: write the report of a table from the runs that exist."""

from __future__ import annotations

from collections.abc import Sequence

from chimera.cli.errors import exit_code


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code."""
    return exit_code(lambda: _command(list(arguments)))


def _command(arguments: list[str]) -> int:
    from chimera.report.__main__ import main as report

    return report(arguments)
