"""Compose and check all jobs of a sweep before the first one starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from chimera.config.compose import compose, plain
from chimera.config.init_from import pending
from chimera.config.start_model import applicable, row_overrides, teacher_directory, wait_for_all
from chimera.errors import UserError
from chimera.rundir.directory import RunDir
from chimera.rundir.identity import identity, is_found_by_identity
from chimera.rundir.records import Records
from chimera.sweep.job import Job
from chimera.train.check import Once, check_parts, check_settings


def plan(
    batch: Sequence[Sequence[str]], composed: Mapping[tuple[str, ...], dict[str, Any]] | None = None
) -> list[Job]:
    """Compose and check the jobs of a batch, in its order, with duplicates.

    Args:
        batch: the overrides of each job.
        composed: resolved configurations by the overrides of a job, of jobs composed already.

    Raises:
        UserError: jobs are not valid; one line per different error, with the first job that has it.
    """
    records = Records()
    checks = Checks(label(batch))
    rows = [tuple(applicable(overrides)) for overrides in batch]
    jobs = _jobs(rows, checks, records, composed or {})
    jobs = _without_weights(jobs)
    _one_run_a_directory(jobs)
    identities = {job.identity for job in jobs}
    checks.each(jobs, lambda job: _check_teacher(job, identities))
    records.tell()
    return jobs


def prerequisites(jobs: Sequence[Job]) -> list[Job]:
    """Jobs to train first: unfinished rows that jobs of the sweep start from (`init_from=row:…`).

    Raises:
        UserError: one of them cannot be trained.
    """
    identities = {job.identity for job in jobs}
    by_identity = {
        str(job.config["init_run"]): tuple(row_overrides(job.config["init_from"], job.overrides))
        for job in jobs
        if job.record is None
        and pending(job.config) is not None
        and job.config["init_run"] not in identities
    }
    if not by_identity:
        return []
    rows = list(by_identity.values())
    checks = Checks([f"{overrides[0].lstrip('+')}, to start from" for overrides in rows])
    first = [replace(job, record=None) for job in _jobs(rows, checks, Records(), {})]
    return [*prerequisites(first), *first]


def _jobs(
    batch: Sequence[tuple[str, ...]],
    checks: Checks,
    records: Records,
    composed: Mapping[tuple[str, ...], dict[str, Any]],
) -> list[Job]:
    """Compose and check the jobs of these overrides; a finished run is not checked again."""
    named = zip(batch, checks.labels, strict=True)

    def job_of(named: tuple[tuple[str, ...], str]) -> Job:
        overrides, name = named
        config = composed.get(overrides) or plain(compose(list(overrides)))
        directory = RunDir.of(config)
        record = records.find(config, directory)
        return Job(overrides, name, config, directory, identity(config), record)

    jobs = checks.each(list(named), job_of)

    def check(job: Job, what: Callable[[dict[str, Any], Once], None]) -> None:
        done = job.status().get("state") == "DONE"
        if not done or not is_found_by_identity(job.config):
            what(job.config, checks.once)

    checks.each(jobs, lambda job: check(job, check_settings))
    checks.each(jobs, lambda job: check(job, check_parts))
    return jobs


def _without_weights(jobs: list[Job]) -> list[Job]:
    """The jobs, records in place of runs only where no job that has to run needs the weights."""
    while True:
        to_run = [job for job in jobs if job.status().get("state") != "DONE"]
        needed = {identity for job in to_run for identity in job.prerequisites}
        needed &= {job.identity for job in jobs if job.record is not None}
        if not needed:
            return jobs
        jobs = [replace(job, record=None) if job.identity in needed else job for job in jobs]


Subject = TypeVar("Subject")
Result = TypeVar("Result")


class Checks:
    """Runs a check on all jobs, then raises once for all errors.

    Args:
        labels: labels of the jobs, in the order of the subjects.
    """

    def __init__(self, labels: list[str]) -> None:
        self.labels = labels
        self.once = Once()

    def each(self, subjects: Sequence[Subject], check: Callable[[Subject], Result]) -> list[Result]:
        """The result of the check for each job's subject.

        Raises:
            UserError: one line per different error, with the first job that has it.
        """
        results = list[Result]()
        errors = dict[str, list[str]]()
        for subject, name in zip(subjects, self.labels, strict=True):
            try:
                results.append(check(subject))
            except UserError as error:
                errors.setdefault(str(error), []).append(name)
        if errors:
            raise UserError("\nerror: ".join(_line(*each) for each in errors.items()))
        return results


def label(batch: Sequence[Sequence[str]]) -> list[str]:
    """Labels of the jobs: the overrides that not all jobs have, rows of tables by name only."""
    common = set.intersection(*map(set, batch)) if len(batch) > 1 else set()
    varying = [[text for text in overrides if text not in common] for overrides in batch]
    return [" ".join(map(_short, overrides)) or "the run" for overrides in varying]


def _short(override: str) -> str:
    key, _, value = override.partition("=")
    return value if key.startswith("+") and "/" in key else override


def _check_teacher(job: Job, identities: set[str]) -> None:
    """Raise if the job's teacher is neither trained, nor in training, nor a job of the sweep."""
    teacher = None if job.record is not None else teacher_directory(job.config)
    in_sweep = job.config["task"].get("teacher_run") in identities
    if teacher is not None and not in_sweep and not teacher.is_running():
        wait_for_all({**job.config, "init_from": None}, list(job.overrides))


def _line(error: str, names: list[str]) -> str:
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{error} [{names[0]}{more}]"


def _one_run_a_directory(jobs: list[Job]) -> None:
    """Raise if several different runs have the same `run_dir=`."""
    identities: dict[Path, str] = {}
    for job in jobs:
        if identities.setdefault(job.key, job.identity) != job.identity:
            raise UserError(
                f"run_dir={job.config['run_dir']} is the same for several jobs of the sweep; leave"
                " it out, or use a setting that varies, as in run_dir='runs/lr-${optim.lr}'"
            )
