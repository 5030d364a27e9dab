"""The jobs of a sweep: every combination of the values, composed and checked before one starts."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, TypeVar

from hydra.core.override_parser.types import Glob, IntervalSweep, Override, RangeSweep

from chimera.config.compose import compose, plain
from chimera.config.groups import groups
from chimera.config.start_model import (
    applicable,
    pending,
    row_overrides,
    teacher_directory,
    wait_for_all,
)
from chimera.errors import UserError
from chimera.program import SWEEP
from chimera.rundir.directory import RunDir
from chimera.rundir.identity import identity, is_found_by_identity
from chimera.rundir.records import Records
from chimera.sweep.job import Job
from chimera.train.check import Once, check_parts, check_settings

#: Most jobs of a sweep: all are composed before the first one starts.
MOST = 100_000


def list_jobs(overrides: Sequence[str], parsed: Sequence[Override]) -> list[list[str]]:
    """Overrides of each job; `+<paper>=<table>` stands for all rows of the table.

    Args:
        overrides: of the sweep.
        parsed: the same, parsed.

    Raises:
        UserError: a range or a glob matches nothing.
    """
    choices = [_choices(text, override) for text, override in zip(overrides, parsed, strict=True)]
    if (number := math.prod(map(len, choices))) > MOST:
        raise UserError(f"the sweep has {number:,} jobs; it takes at most {MOST:,}")
    return [list(job) for job in itertools.product(*choices)]


def _choices(text: str, override: Override) -> list[str]:
    table = f"{override.key_or_group}/{override.value()}"
    if override.is_add() and table in groups():
        return [f"+{table}={row}" for row in groups()[table]]
    if override.is_sweep_override():
        return [f"{override.get_key_element()}={value}" for value in values_of(override)]
    return [text]


def values_of(override: Override) -> list[str]:
    """The values of `a,b`, `choice(…)`, `range(…)` or `glob(…)`.

    Raises:
        UserError: there are none.
    """
    value = override.value()
    if isinstance(value, Glob):
        found = [
            name
            for name in groups().get(override.key_or_group, [])
            if any(fnmatch(name, pattern) for pattern in value.include)
            and not any(fnmatch(name, pattern) for pattern in value.exclude)
        ]
    else:
        if isinstance(value, RangeSweep) and (number := _length(value)) > MOST:
            raise UserError(
                f"{override.input_line} has {number:,.0f} values; a sweep takes at most {MOST:,}"
            )
        found = list(override.sweep_string_iterator())
    if not found:
        raise UserError(f"{override.input_line} matches nothing, so there are no jobs; widen it")
    return found


def _length(values: RangeSweep) -> float:
    """Number of values of a range, about."""
    start, stop, step = (float(end or 0) for end in (values.start, values.stop, values.step))
    return (stop - start) / step if step else math.inf


def check_sweep(parsed: Sequence[Override], *, searched: bool = False) -> None:
    """Check that no override sets or varies a setting of the sweep itself.

    Args:
        parsed: the overrides.
        searched: whether the sweep is a search, which takes ranges without steps.

    Raises:
        UserError: an override does; the message names the override to use instead.
    """
    tables = {f"{override.key_or_group}/{override.value()}": override for override in parsed}
    for override in parsed:
        if table := tables.get(override.key_or_group):
            raise UserError(
                f"{override.input_line} chooses rows of a table, of which {table.input_line} takes"
                " all; leave one of them out"
            )
        if isinstance(override.value(), IntervalSweep) and not searched:
            raise UserError(
                f"{override.input_line} is a range to search; add search.trials=<number>, or list"
                " the values"
            )
        if override.key_or_group == "extend":
            raise UserError("extend=true goes on with one finished run; start it without -m")
        if override.key_or_group in ("workers", "launcher") and override.is_sweep_override():
            raise UserError(
                f"{override.key_or_group} cannot vary within a sweep; give it a single value"
            )


@contextlib.contextmanager
def sweep_variable(overrides: Sequence[str], parsed: Sequence[Override]) -> Iterator[None]:
    """Tell the jobs that are started inside of which sweep they are, and which keys it varies.

    Args:
        overrides: of the sweep; the same ones have the same name.
        parsed: the same, parsed.
    """
    digest = hashlib.sha256("\n".join(overrides).encode()).hexdigest()[:8]
    keys = [o.key_or_group for o in parsed if o.is_sweep_override() and o.key_or_group != "seed"]
    os.environ[SWEEP] = f"sweep-{digest}:{','.join(keys)}"
    try:
        yield
    finally:
        del os.environ[SWEEP]


def compose_jobs(
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
