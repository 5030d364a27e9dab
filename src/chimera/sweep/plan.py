"""Jobs of a sweep, composed and checked before the first of them starts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from chimera.config.compose import compose, plain
from chimera.config.init_from import awaited, words_of
from chimera.errors import UserError
from chimera.rundir.directory import RunDir
from chimera.rundir.identity import identity
from chimera.train.check import check_parts, check_settings
from chimera.train.prerequisites import await_all, identities
from chimera.train.teacher import directory_of

#: What a job is judged by where no table says otherwise; sweepers that search minimise it.
METRIC = "val/perplexity"


@dataclass(frozen=True)
class Job:
    """One run of a sweep.

    Args:
        words: the command line behind `python train.py`.
        label: those of the words that not all jobs of the sweep have.
        config: what they resolve to.
        directory: where the run goes, or went.
        identity: hash of what the run computes.
    """

    words: tuple[str, ...]
    label: str
    config: dict[str, Any]
    directory: RunDir
    identity: str

    @property
    def key(self) -> Path:
        """What two jobs that are one run have in common."""
        return self.directory.path.resolve()

    @property
    def needs(self) -> tuple[str, ...]:
        """Identities of the runs that have to be done before: a teacher, a model to start from."""
        return identities(self.config)

    @property
    def metric(self) -> str:
        """Name of the number that the job is judged by."""
        return str((self.config.get("table") or {}).get("metric") or METRIC)


def plan(batch: Sequence[Sequence[str]]) -> list[Job]:
    """The jobs of a batch in its order, duplicates among them.

    Raises:
        UserError: a line for each kind of mistake, naming the first job that makes it.
    """
    found = Checks(label(batch))
    configs = found.of([tuple(words) for words in batch], lambda words: plain(compose(list(words))))
    found.of(configs, check_settings)
    jobs = [
        Job(tuple(words), name, config, RunDir.of(config), identity(config))
        for words, name, config in zip(batch, found.labels, configs, strict=True)
    ]
    _one_run_a_directory(jobs)
    found.of(configs, check_parts)
    there = {job.identity for job in jobs}
    found.of(jobs, lambda job: _check_teacher(job, there))
    return jobs


def before(jobs: Sequence[Job]) -> list[Job]:
    """Rows that jobs of a sweep start from and that are not there: they are trained first.

    Raises:
        UserError: one of them cannot be.
    """
    there = {job.identity for job in jobs}
    wanted = {
        str(job.config["init_run"]): tuple(words_of(job.config["init_from"], job.words))
        for job in jobs
        if awaited(job.config) is not None and job.config["init_run"] not in there
    }
    found = Checks([f"{words[0].lstrip('+')}, to start from" for words in wanted.values()])
    configs = found.of(list(wanted.values()), lambda words: plain(compose(list(words))))
    found.of(configs, check_settings)
    found.of(configs, check_parts)
    first = [
        Job(words, name, config, RunDir.of(config), identity(config))
        for words, name, config in zip(wanted.values(), found.labels, configs, strict=True)
    ]
    return [*before(first), *first] if first else []


Subject = TypeVar("Subject")
Answer = TypeVar("Answer")


class Checks:
    """Checks of all jobs at once; raises when all were asked.

    Args:
        labels: of the jobs.
    """

    def __init__(self, labels: list[str]) -> None:
        self.labels = labels

    def of(self, subjects: Sequence[Subject], ask: Callable[[Subject], Answer]) -> list[Answer]:
        answers, wrong = list[Answer](), dict[str, list[str]]()
        for subject, name in zip(subjects, self.labels, strict=True):
            try:
                answers.append(ask(subject))
            except UserError as error:
                wrong.setdefault(str(error), []).append(name)
        if wrong:
            raise UserError("\nerror: ".join(_line(error, names) for error, names in wrong.items()))
        return answers


def label(batch: Sequence[Sequence[str]]) -> list[str]:
    """Of each job the words that tell it from the others, rows of tables by their names alone."""
    common = set.intersection(*(set(words) for words in batch)) if len(batch) > 1 else set()
    rows = [[word for word in words if word not in common] for words in batch]
    return [" ".join(_short(word) for word in words) or "the run" for words in rows]


def _short(word: str) -> str:
    key, _, value = word.partition("=")
    return value if key.startswith("+") and "/" in key else word


def _check_teacher(job: Job, there: set[str]) -> None:
    """Of a job that no other one of the sweep teaches: its teacher is trained, or in training."""
    teacher = directory_of(job.config)
    taught = job.config["task"].get("teacher_run") in there
    if teacher is not None and not taught and not teacher.alive():
        await_all({**job.config, "init_from": None}, list(job.words))


def _line(error: str, names: list[str]) -> str:
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{error} [{names[0]}{more}]"


def _one_run_a_directory(jobs: list[Job]) -> None:
    """Refuse a `run_dir=` that several different runs would share."""
    found: dict[Path, str] = {}
    for job in jobs:
        if found.setdefault(job.key, job.identity) != job.identity:
            raise UserError(
                f"run_dir={job.config['run_dir']} would hold several jobs of the sweep; leave it"
                " out, or name what varies in it, as in run_dir='runs/lr-${optim.lr}'"
            )
