"""Compute tables of the papers that need no training: `python -m chimera.tables.<name>`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from chimera.errors import UserError, one_line


def run(main: Callable[[Sequence[str]], None]) -> None:
    """Run `main` on the command line's arguments; for bad ones print one line and exit with 2."""
    try:
        main(sys.argv[1:])
    except UserError as error:
        print(f"error: {one_line(error)}", file=sys.stderr)
        sys.exit(2)
