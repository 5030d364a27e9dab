"""`python train.py -m …`: Hydra's sweepers say which jobs, we run them."""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from typing import Any

from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import Glob, IntervalSweep, Override
from hydra.core.utils import JobReturn, JobStatus
from hydra.errors import ConfigCompositionException, HydraException
from hydra.utils import instantiate
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console

from chimera.config.compose import compose, plain
from chimera.config.groups import groups
from chimera.config.overrides import check_choices
from chimera.config.scale import held_back
from chimera.config.search_path import register_experiments
from chimera.errors import UserError
from chimera.paths import CONF
from chimera.sweep.board import Board
from chimera.sweep.engine import Engine, State, Work
from chimera.sweep.local import Launcher
from chimera.sweep.plan import Job, before, plan
from chimera.train.check import check_settings


class JobFailedError(RuntimeError):
    """A job of a sweep was not done; sweepers that search take it as a failed trial."""


class Stopped(Exception):  # noqa: N818 - a request that was met, no error
    """The sweep was asked to stop; its jobs are saved."""


def sweep(words: list[str]) -> int:
    """Run a sweep; returns the exit code: 0, 1 if a job failed, 130 if it was stopped.

    Raises:
        UserError: before anything was written.
    """
    parsed = check_choices(words)
    _refuse(parsed)
    alone = _first(words, parsed)
    first = plain(compose(alone))  # what all jobs have wrong, in our own words
    check_settings(first)
    for line in held_back(first, alone):
        print(line, file=sys.stderr)
    launcher = instantiate(first["launcher"], _convert_="all")
    launcher.check()
    # Hydra would hold them against a configuration without the rows, which may lack such keys.
    same = [word for word, o in zip(words, parsed, strict=True) if _of_every_job(o)]
    batches = Batches(launcher, first["workers"], same)
    try:
        with _hydra() as hydra, tempfile.TemporaryDirectory() as scratch:
            hydra.multirun(
                config_name="config",
                task_function=batches.run,
                overrides=[
                    *(word for word in words if word not in same),
                    "hydra/launcher=chimera",
                    f"hydra.sweep.dir={scratch}",  # Hydra insists on writing there
                    "hydra/job_logging=none",
                    "hydra/hydra_logging=none",
                ],
                with_log_configuration=False,
            )
    except Stopped:
        return _stopped(batches.work)
    except JobFailedError:
        pass
    except (HydraException, OmegaConfBaseException) as error:
        cause = error.__cause__ if isinstance(error, ConfigCompositionException) else error
        raise UserError(" ".join(str(cause or error).split())) from error
    if not batches.work:
        raise UserError("the sweep has no jobs: its ranges and globs match nothing")
    _report(batches.jobs, words, parsed)
    return _failed(batches.work)


class Batches:
    """What the sweeper asks for, batch by batch, and what came of it.

    Args:
        launcher, workers: start the jobs, so many at a time.
        same: words of every job that the sweeper does not know of.
    """

    def __init__(self, launcher: Launcher, workers: int, same: Sequence[str] = ()) -> None:
        self.launcher, self.workers, self.same = launcher, workers, same
        self.jobs: list[Job] = []
        self.work: list[Work] = []

    def run(self, batch: Sequence[Sequence[str]]) -> Sequence[JobReturn]:
        """Check all jobs, run what is missing of them, return the metric of each."""
        if not batch:
            return []
        jobs = plan([[*words, *self.same] for words in batch])
        engine = Engine([*before(jobs), *jobs], self.launcher, self.workers, Board())
        self.jobs += jobs
        self.work += engine.run()
        if engine.stops:
            raise Stopped
        return [_return(job, engine.work[job.key]) for job in jobs]


class Returned(JobReturn):
    """What a job gives its sweeper; the original prints a line of its own for a failed one."""

    @property
    def return_value(self) -> Any:
        if isinstance(self._return_value, JobFailedError):
            raise self._return_value
        return self._return_value

    @return_value.setter
    def return_value(self, value: Any) -> None:
        self._return_value = value


def _return(job: Job, work: Work) -> JobReturn:
    returned = Returned(overrides=job.words, task_name="train")
    if work.state is State.DONE:
        returned.status = JobStatus.COMPLETED
        returned.return_value = job.directory.record()["metrics"].get(job.metric, math.nan)
    else:
        returned.status = JobStatus.FAILED
        returned.return_value = JobFailedError(f"{job.label}: {work.why}")
    return returned


@contextmanager
def _hydra() -> Iterator[Any]:
    register_experiments()
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        yield GlobalHydra.instance().hydra


def _refuse(parsed: Sequence[Override]) -> None:
    for override in parsed:
        if override.key_or_group == "hydra/launcher":
            raise UserError(
                "hydra/launcher is ours in a sweep; choose launcher="
                + " or launcher=".join(groups()["launcher"])
            )
        if override.key_or_group == "hydra.sweeper.max_batch_size":
            raise UserError("hydra.sweeper.max_batch_size: workers= says how many run at a time")
        if override.key_or_group in ("workers", "launcher") and override.is_sweep_override():
            raise UserError(f"{override.key_or_group} is one for the whole sweep")


def _of_every_job(override: Override) -> bool:
    """Whether it is `key=value`, and neither a choice nor swept nor Hydra's own."""
    name = override.key_or_group
    unlike = (override.is_add(), override.is_force_add(), override.is_delete())
    if any(unlike) or override.is_sweep_override() or name in groups():
        return False
    return name.partition(".")[0].partition("/")[0] != "hydra"


def _first(words: Sequence[str], parsed: Sequence[Override]) -> list[str]:
    """The command line of one job, of whichever comes first."""
    found = []
    for word, override in zip(words, parsed, strict=True):
        name, value = override.key_or_group, override.value()
        if name.partition(".")[0].partition("/")[0] == "hydra":
            continue
        if override.is_add() and "/" not in name and f"{name}/{value}" in groups():
            found.append(f"+{name}/{value}={groups()[f'{name}/{value}'][0]}")
        elif override.is_sweep_override():
            found.append(f"{override.get_key_element()}={_first_value(override)}")
        else:
            found.append(word)
    return found


def _first_value(override: Override) -> str:
    value, name = override.value(), override.key_or_group
    if isinstance(value, IntervalSweep):
        return str(value.start)
    if isinstance(value, Glob):
        options = [o for o in groups().get(name, []) if any(fnmatch(o, p) for p in value.include)]
    else:
        options = [str(v) for v in override.sweep_string_iterator()]
    if not options:
        raise UserError(f"the sweep has no jobs: {override.input_line} matches nothing")
    return options[0]


def _report(jobs: list[Job], words: Sequence[str], parsed: Sequence[Override]) -> None:
    """Write and print the table that the jobs are the rows of, if they are those of one table."""
    names = {(job.config.get("table") or {}).get("name") for job in jobs}
    name = names.pop()
    if names or not name:
        return
    given, paper = [], str(name).partition("/")[0]
    for word, override in zip(words, parsed, strict=True):
        if override.key_or_group in ("seed", name, paper):
            continue
        if override.is_sweep_override():
            print(f"no table: {override.key_or_group} varies in this sweep", file=sys.stderr)
            return
        given.append(word)
    from chimera.report import report_folder, show, write

    summary = write(name, given, sorted({job.config["seed"] for job in jobs}))
    console = Console()
    show(summary, console)
    console.print(f"{report_folder(summary)}", highlight=False, soft_wrap=True)


def _failed(work: list[Work]) -> int:
    lost = [one for one in work if one.state is State.FAILED]
    for one in lost:
        log = f"; {one.log}" if one.started else ""
        print(f"failed: {one.job.label}: {one.why}{log}", file=sys.stderr)
    return int(bool(lost))


def _stopped(work: list[Work]) -> int:
    done = sum(one.state is State.DONE for one in work)
    _failed(work)
    print(
        f"stopped with {done} of {len(work)} jobs done; the same command goes on", file=sys.stderr
    )
    return 130
