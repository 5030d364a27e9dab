"""python -m chimera.report <paper>/<table> scale=<scale> seed=0,1,2 [out=<folder>] [key=value …]"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from chimera.config.tables import tables
from chimera.errors import UserError
from chimera.report.write import report_folder, show, write


def arguments(argv: list[str]) -> tuple[str, list[str], list[int], Path | None]:
    """Table, overrides, seeds, folder.

    Raises:
        UserError: no table, or seeds that are no numbers.
    """
    names = [text for text in argv if "=" not in text]
    if len(names) != 1:
        raise UserError(f"name one table of {', '.join(tables())}")
    given = dict(text.split("=", 1) for text in argv if text.startswith(("seed=", "out=")))
    seeds = given.get("seed", "0").split(",")
    if not all(seed.isdigit() for seed in seeds):
        raise UserError(f"seed={given['seed']} is not allowed; write seed=0,1,2")
    overrides = [text for text in argv if "=" in text and not text.startswith(("seed=", "out="))]
    out = Path(given["out"]) if "out" in given else None
    return names[0], overrides, [int(seed) for seed in dict.fromkeys(seeds)], out


def main(argv: list[str]) -> int:
    """Write the files, show the table, print the folder."""
    table, overrides, seeds, out = arguments(argv)
    summary = write(table, overrides, seeds, out)
    console = Console()
    show(summary, console)
    console.print(f"{out or report_folder(summary)}", highlight=False, soft_wrap=True)
    return 0


def guarded(main: Callable[[list[str]], int], argv: list[str]) -> int:
    """Exit code 2 and one line for bad arguments."""
    try:
        return main(argv)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(guarded(main, sys.argv[1:]))
