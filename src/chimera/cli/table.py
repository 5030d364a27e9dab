"""`python -m chimera.cli.table <paper>/<table> [key=value …]`: train a table's unfinished rows."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from chimera.cli.errors import exit_code
from chimera.errors import UserError


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code."""
    return exit_code(lambda: _command(list(arguments)))


def _command(arguments: list[str]) -> int:
    from chimera.config.tables import load, tables
    from chimera.sweep.main import sweep

    if not arguments or "=" in arguments[0]:
        raise UserError(f"name a table, as in make table T={tables()[0]}: {', '.join(tables())}")
    table = load(arguments[0])
    return sweep([f"+{table.paper}={table.name}", *arguments[1:]])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
