"""`chimera table <paper>/<table> [key=value …]`: train a table's unfinished rows, report it."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from chimera.cli.errors import exit_code
from chimera.cli.flags import HELP
from chimera.errors import UserError

USAGE = "chimera table <paper>/<table> [scale=…] [seed=0,1,2] [workers=2] [key=value …]"


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code."""
    return exit_code(lambda: _command(list(arguments)))


def _command(arguments: list[str]) -> int:
    if set(arguments) & HELP:
        print(f"{USAGE}\nchimera list tables names the tables")
        return 0
    from chimera.config.tables import load, tables
    from chimera.sweep.main import sweep

    if not arguments or "=" in arguments[0]:
        raise UserError(f"name a table, as in chimera table {tables()[0]}: {', '.join(tables())}")
    table = load(arguments[0])
    return sweep([f"+{table.paper}={table.name}", *arguments[1:]])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
