"""The comparison of a sweep's runs, written at its end."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from rich.console import Console

from chimera.errors import UserError
from chimera.report.compare_page import show, write_comparison
from chimera.report.comparison import is_run
from chimera.rundir.records import Record
from chimera.sweep.plan import Job


def write_compared(jobs: Iterable[Job], console: Console, *, table: bool) -> None:
    """Compare the runs that have begun, if there are two or more; print where.

    Args:
        jobs: of the sweep; those that never began are left out.
        console: to print to.
        table: print the table too.
    """
    by_key = {job.key: job.record or job.directory.path for job in jobs}
    found = [run for run in by_key.values() if isinstance(run, Record) or is_run(run)]
    if len(found) < 2:
        return
    try:
        comparison, folder = write_comparison(found)
    except UserError as error:
        print(f"no comparison is written: {error}", file=sys.stderr)
        return
    if table:
        show(comparison, console)
    page = folder / "compare.html"
    console.print(str(page), highlight=False, soft_wrap=True, markup=False)
