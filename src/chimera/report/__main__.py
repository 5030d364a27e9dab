"""Write the report of a table: `chimera report <paper>/<table> [seed=0,1,2] [rows=a,b] …`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from chimera.config.arguments import describe, read
from chimera.config.tables import Table, load, tables
from chimera.errors import UserError, one_line
from chimera.types import NonNegativeInt

USAGE = (
    "chimera report <paper>/<table> [seed=0,1,2] [rows=<row>,<row>] [out=<folder>]"
    " [forms=png,svg,pdf] [group=choice ...] [key=value ...]"
)


@dataclass(frozen=True)
class Options:
    """Options of the command line, besides the overrides of the table's jobs.

    Args:
        seed: seeds of the runs, such as 0,1,2.
        rows: which of the table's rows; none: all. Without its reference, the first one is compared
            with.
        out: folder for the files; default reports/<paper>/<table>/<scale>.
        forms: of the figures.
    """

    seed: list[NonNegativeInt] = field(default_factory=lambda: [0])
    rows: list[str] = field(default_factory=list)
    out: Path | None = None
    forms: list[Literal["png", "svg", "pdf"]] = field(default_factory=lambda: ["png", "svg", "pdf"])

    @property
    def seeds(self) -> list[int]:
        """The seeds without duplicates, in their order."""
        return list(dict.fromkeys(self.seed))


def parse(arguments: Sequence[str]) -> tuple[Table, list[str], Options]:
    """Read the command line: the table, overrides of its jobs, options.

    Raises:
        UserError: no table or several tables are named, it does not exist or has no such row, a
            seed is not a number, or a word is for training only.
    """
    remaining: list[str] = []
    options = read(Options, arguments, USAGE, unread=remaining)
    names = [argument for argument in remaining if "=" not in argument]
    if len(names) != 1:
        chosen = f"{len(names)} tables are named" if names else "no table is named"
        raise UserError(f"{chosen}; name one of {', '.join(tables())}")
    if not options.seed:
        raise UserError("seed= is empty; name one or more seeds, as in seed=0,1,2")
    for argument in remaining:
        if argument.partition("=")[0] in ("overwrite", "extend", "run_dir"):
            raise UserError(
                f"{argument} is for training, and a report reads runs; leave it out"
                " (files of an earlier report are replaced)"
            )
    table = load(names[0]).only(options.rows)
    return table, [argument for argument in remaining if "=" in argument], options


def main(arguments: Sequence[str]) -> int:
    """Write the report's files, print the table and the folder; return the exit code."""
    if {"-h", "--help"} & set(arguments):
        print(describe(Options, USAGE))
        return 0
    table, overrides, options = parse(arguments)
    from rich.console import Console

    from chimera.report.write import report_folder, show, write

    summary = write(table, overrides, options.seeds, options.out, forms=options.forms)
    console = Console()
    show(summary, console)
    folder = options.out or report_folder(summary)
    console.print(str(folder), highlight=False, soft_wrap=True, markup=False)
    return 0


def guarded(main: Callable[[Sequence[str]], int], arguments: Sequence[str]) -> int:
    """Run `main`; for bad arguments print one line and return 2."""
    try:
        return main(arguments)
    except UserError as error:
        print(f"error: {one_line(error)}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(guarded(main, sys.argv[1:]))
