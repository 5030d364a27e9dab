"""The command line of a computed table."""

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
    """Where a table is written.

    Args:
        to: folder of the table's files; it is only printed if this is left out.
    """

    to: Path | None = None


def run(main: Callable[[Sequence[str]], None]) -> None:
    """Run `main` on the command line's arguments; bad ones are one line and exit code 2."""
    try:
        main(sys.argv[1:])
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


def show(head: Sequence[str], rows: Sequence[Sequence[str]], title: str | None = None) -> None:
    """Print a table."""
    table = Table(*head, title=title, title_justify="left")
    for row in rows:
        table.add_row(*row)
    Console().print(table)
