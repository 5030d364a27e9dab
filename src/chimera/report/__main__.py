"""`python -m chimera.report <paper>/<table> [seed=0,1,2] [key=value …]`: a table's report."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from chimera.config.arguments import describe, read
from chimera.config.tables import tables
from chimera.errors import UserError
from chimera.report.write import report_folder, show, write
from chimera.types import NonNegativeInt

USAGE = (
    "python -m chimera.report <paper>/<table> [seed=0,1,2] [out=<folder>]"
    " [group=choice ...] [key=value ...]"
)


@dataclass(frozen=True)
class Options:
    """What is reported besides the overrides of the table's jobs.

    Args:
        seed: of the runs, such as 0,1,2.
        out: folder of the files; reports/<paper>/<table>/<scale> if it is left out.
    """

    seed: list[NonNegativeInt] = field(default_factory=lambda: [0])
    out: Path | None = None

    @property
    def seeds(self) -> list[int]:
        """Each once."""
        return list(dict.fromkeys(self.seed))


def parse(arguments: Sequence[str]) -> tuple[str, list[str], Options]:
    """Table, overrides of its jobs, options.

    Raises:
        UserError: not one table, or seeds that are no numbers.
    """
    others: list[str] = []
    options = read(Options, arguments, USAGE, unread=others)
    names = [argument for argument in others if "=" not in argument]
    if len(names) != 1:
        raise UserError(f"name one table of {', '.join(tables())}")
    if not options.seed:
        raise UserError("seed= is not allowed; write seed=0,1,2")
    return names[0], [argument for argument in others if "=" in argument], options


def main(arguments: Sequence[str]) -> int:
    """Write the files, show the table, print the folder."""
    if {"-h", "--help"} & set(arguments):
        print(describe(Options, USAGE))
        return 0
    table, overrides, options = parse(arguments)
    summary = write(table, overrides, options.seeds, options.out)
    console = Console()
    show(summary, console)
    folder = options.out or report_folder(summary)
    console.print(str(folder), highlight=False, soft_wrap=True, markup=False)
    return 0


def guarded(main: Callable[[Sequence[str]], int], arguments: Sequence[str]) -> int:
    """Exit code 2 and one line for bad arguments."""
    try:
        return main(arguments)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(guarded(main, sys.argv[1:]))
