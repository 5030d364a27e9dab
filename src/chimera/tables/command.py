"""Shared parts of the command lines of computed tables."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from chimera.errors import UserError


@dataclass(frozen=True)
class Folder:
    """Options of a command that computes a table.

    Args:
        to: folder for the table's files; None: only print the table.
    """

    to: Path | None = None


def run(main: Callable[[Sequence[str]], None]) -> None:
    """Run `main` on the command line's arguments; for bad ones print one line and exit with 2."""
    try:
        main(sys.argv[1:])
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


def show(head: Sequence[str], rows: Sequence[Sequence[str]], title: str | None = None) -> None:
    """Print a table in the terminal."""
    table = Table(*head, title=title, title_justify="left")
    for row in rows:
        table.add_row(*row)
    Console().print(table)
