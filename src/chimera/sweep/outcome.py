"""What a sweep leaves: the report of a table, the comparison of its runs, the exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from hydra.core.override_parser.types import Override

from chimera.errors import UserError
from chimera.report.compare_page import show as show_comparison
from chimera.report.compare_page import write_comparison
from chimera.report.comparison import is_run
from chimera.report.write import report_folder, show, write
from chimera.rundir.records import Record
from chimera.sweep.job import Job, State
from chimera.sweep.scheduler import Scheduler


def report(jobs: list[Job], overrides: Sequence[str], parsed: Sequence[Override]) -> bool:
    """Write and print the report of a table if all jobs are rows of this table; whether it did."""
    names = {(job.config.get("table") or {}).get("name") for job in jobs}
    name = names.pop()
    if names or not name:
        return False
    common = []
    paper = str(name).partition("/")[0]
    for text, override in zip(overrides, parsed, strict=True):
        if override.key_or_group in ("seed", name, paper):
            continue
        if override.is_sweep_override():
            print(
                f"no report is written: {override.key_or_group} varies in this sweep; a table's"
                " sweep varies only rows and seeds",
                file=sys.stderr,
            )
            return False
        common.append(text)
    configs = {(job.config["table"]["row"], job.config["seed"]): job.config for job in jobs}
    seeds = sorted({seed for _, seed in configs})
    results = write(name, common, seeds, configs=configs)
    show(results, report_folder(results))
    return True


def compare(jobs: Sequence[Job], *, table: bool) -> None:
    """Compare the runs that have begun, if there are two or more; print where.

    Args:
        jobs: of the sweep.
        table: print the table too.
    """
    by_key = {job.key: job.record or job.directory.path for job in jobs}
    runs = [run for run in by_key.values() if isinstance(run, Record) or is_run(run)]
    if len(runs) < 2:
        return
    try:
        comparison, folder = write_comparison(runs)
    except UserError as error:
        print(f"no comparison is written: {error}", file=sys.stderr)
        return
    if table:
        show_comparison(comparison, folder)
    else:
        print(folder / "compare.html")


def exit_code(scheduler: Scheduler) -> int:
    """Print a line for each failed job and, after a stop, how to continue; return the exit code."""
    jobs = list(scheduler.jobs.values())
    failed = [job for job in jobs if job.state is State.FAILED]
    for job in failed:
        log = f"; see {job.log}" if job.started is not None else ""
        print(f"failed: {job.label}: {job.why}{log}", file=sys.stderr)
    if scheduler.stops:
        done = sum(job.state is State.DONE for job in jobs)
        print(
            f"stopped with {done} of {len(jobs)} jobs done; run the same command again to continue",
            file=sys.stderr,
        )
        return 130
    return int(bool(failed))
