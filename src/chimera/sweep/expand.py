"""The jobs of a command line, listed and not run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hydra.core.utils import JobReturn, JobStatus

from chimera.config.compose import compose, plain
from chimera.config.overrides import canonical, check_choices
from chimera.errors import UserError
from chimera.rundir.directory import RunDir
from chimera.sweep.main import multirun
from chimera.sweep.overrides import check_sweep, first_job, shared
from chimera.sweep.plan import Job, plan, prerequisites
from chimera.train.check import check_settings


def expand(overrides: Sequence[str]) -> list[Job]:
    """The jobs of a run or a sweep, checked, after those that have to be trained first.

    Jobs that are the same run are one. A job of a sweep that the run store has a record of has the
    record for its directory; a single run is trained for its weights. Nothing is written.

    Args:
        overrides: of a run (one job) or a sweep.

    Raises:
        UserError: a job is not valid, or the sweep is a search.
    """
    for text in overrides:
        if text.lstrip("+").startswith(("search.", "hydra/sweeper=")):
            raise UserError(f"{text}: which runs a search takes is known when it ends; list values")
    overrides = canonical(list(overrides))
    parsed = check_choices(overrides, sweep=True)
    check_sweep(parsed)
    first = first_job(overrides, parsed)
    config = plain(compose(first))
    check_settings(config, train=False)
    common = shared(overrides, parsed)
    batch: list[list[str]] = []

    def collect(jobs: Sequence[Sequence[str]]) -> list[JobReturn]:
        batch.extend([*texts, *common] for texts in jobs)
        done = JobReturn(status=JobStatus.COMPLETED)
        done.return_value = 0.0
        return [done for _ in jobs]

    multirun(collect, [text for text in overrides if text not in common])
    if not batch:
        raise UserError("the sweep has no jobs: its ranges and globs match nothing; widen them")
    jobs = plan(batch, {tuple(first): config}, keep=False)
    if len(jobs) == 1:
        jobs = [replace(jobs[0], directory=RunDir.of(jobs[0].config))]
    return list({job.key: job for job in (*prerequisites(jobs), *jobs)}.values())
