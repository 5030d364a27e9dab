"""`chimera dashboard <paper>/<table>`: build a W&B workspace and report of a table."""

from __future__ import annotations

from collections.abc import Sequence

from chimera.cli.command import HELP, exit_code
from chimera.errors import UserError


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code."""
    return exit_code(lambda: _command(list(arguments)))


def _command(arguments: list[str]) -> int:
    from chimera.report.__main__ import Options, parse

    if set(arguments) & HELP:
        from chimera.config.arguments import describe

        usage = "chimera dashboard <paper>/<table> [seed=0,1,2] [rows=<row>,<row>] [out=<folder>]"
        print(describe(Options, usage))
        return 0
    parse(arguments)  # a mistake is told before W&B is imported
    try:
        from chimera.report.dashboard import main as dashboard
    except ModuleNotFoundError as error:
        raise UserError(
            f"dashboard needs {error.name}; install it: pip install 'chimera-lm[dashboard]'"
        ) from error
    return dashboard(arguments)
