"""`chimera report <paper>/<table>`: write the report of a table from the runs that exist."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from chimera.cli.command import command
from chimera.config.tables import Table, load, tables
from chimera.errors import UserError
from chimera.types import NonNegativeInt

WORDS = "<paper>/<table> [group=choice …] [key=value …]"


@dataclass(frozen=True)
class Runs:
    """The runs of a table, besides the overrides of its jobs.

    Args:
        seed: seeds of the runs, such as 0,1,2.
        rows: which of the table's rows; none: all. Without its reference, the first one is compared
            with.
    """

    seed: list[NonNegativeInt] = field(default_factory=lambda: [0])
    rows: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Options(Runs):
    """Options besides the table and the overrides of its jobs.

    Args:
        seed: seeds of the runs, such as 0,1,2.
        rows: which of the table's rows; none: all. Without its reference, the first one is compared
            with.
        out: folder for the files; default reports/<paper>/<table>/<scale>.
        forms: of the figures.
    """

    out: Path | None = None
    forms: list[Literal["png", "svg", "pdf"]] = field(default_factory=lambda: ["png", "svg", "pdf"])


def chosen(options: Runs, words: list[str]) -> tuple[Table, list[str], list[int]]:
    """The table, the overrides of its jobs, the seeds without duplicates.

    Raises:
        UserError: no table or several tables are named, it does not exist or has no such row, no
            seed is named, or a word is for training only.
    """
    names = [word for word in words if "=" not in word]
    if len(names) != 1:
        named = f"{len(names)} tables are named" if names else "no table is named"
        raise UserError(f"{named}; name one of {', '.join(tables())}")
    if not options.seed:
        raise UserError("seed= is empty; name one or more seeds, as in seed=0,1,2")
    for word in words:
        if word.partition("=")[0] in ("overwrite", "extend", "run_dir"):
            raise UserError(
                f"{word} is for training, and a report reads runs; leave it out"
                " (files of an earlier report are replaced)"
            )
    overrides = [word for word in words if "=" in word]
    return load(names[0]).only(options.rows), overrides, list(dict.fromkeys(options.seed))


@command("report", Options, WORDS, overrides=True)
def main(options: Options, words: list[str]) -> int:
    """Write the report's files, print the table and the folder."""
    table, overrides, seeds = chosen(options, words)
    from chimera.report.write import report_folder, show, write

    results = write(table, overrides, seeds, options.out, forms=options.forms)
    show(results, options.out or report_folder(results))
    return 0
