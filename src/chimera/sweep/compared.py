"""The comparison of a sweep's runs, written at its end."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console

from chimera.errors import UserError
from chimera.report.compare_page import show, write_comparison
from chimera.report.comparison import is_run


def write_compared(directories: Iterable[Path], console: Console, *, table: bool) -> None:
    """Compare the runs that have begun, if there are two or more; print where.

    Args:
        directories: of the jobs; those of jobs that never began are left out.
        console: to print to.
        table: print the table too.
    """
    paths = [path for path in dict.fromkeys(directories) if is_run(path)]
    if len(paths) < 2:
        return
    try:
        comparison, folder = write_comparison(paths)
    except UserError as error:
        print(f"no comparison is written: {error}", file=sys.stderr)
        return
    if table:
        show(comparison, console)
    page = folder / "compare.html"
    console.print(str(page), highlight=False, soft_wrap=True, markup=False)
