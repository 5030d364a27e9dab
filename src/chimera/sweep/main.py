"""Run `python train.py -m …`: Hydra's sweepers choose the jobs, each runs in its own process."""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import Override
from hydra.core.utils import JobReturn, JobStatus
from hydra.errors import ConfigCompositionException, HydraException
from hydra.utils import instantiate
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console

from chimera.config.compose import compose, plain
from chimera.config.hydra_files import register_roots
from chimera.config.migration_hints import is_hydra
from chimera.config.overrides import canonical, check_choices
from chimera.config.scale import past_lines
from chimera.errors import UserError
from chimera.paths import CONF
from chimera.program import spelt
from chimera.report.write import report_folder, show, write
from chimera.sweep.compared import write_compared
from chimera.sweep.display import Display
from chimera.sweep.engine import Engine
from chimera.sweep.local import Launcher
from chimera.sweep.overrides import check_sweep, first_job, named, shared
from chimera.sweep.plan import Composed, Job, plan, prerequisites
from chimera.sweep.work import State, Work
from chimera.train.check import check_settings

#: Runs a batch of jobs, each given by its overrides, and returns their results.
RunBatch = Callable[[Sequence[Sequence[str]]], Sequence[JobReturn]]


class JobFailedError(RuntimeError):
    """A job of a sweep failed or stopped; sweepers that search count it as a failed trial."""


class Stopped(Exception):  # noqa: N818 - a granted request, not an error
    """The sweep was stopped by a signal; its jobs are saved."""


def sweep(overrides: list[str]) -> int:
    """Run a sweep; return the exit code: 0, 1 if a job failed, 130 if it was stopped.

    Raises:
        UserError: the overrides are not valid; nothing has been written then.
    """
    own = [text for text in overrides if text.lstrip("+").startswith("search.")]
    overrides = canonical([text for text in overrides if text not in own])
    parsed = check_choices(overrides, sweep=True)
    check_sweep(parsed, searched=bool(own))
    if not overrides:
        raise UserError(f"a sweep varies something, as in {spelt('train')} -m seed=0,1,2")
    with named(overrides, parsed):
        if own:
            from chimera.sweep.search import search

            return search(overrides, parsed, [text.lstrip("+") for text in own])
        return _sweep(overrides, parsed)


def _sweep(overrides: list[str], parsed: list[Override]) -> int:
    first = first_job(overrides, parsed)
    config = plain(compose(first))  # so that errors of all jobs are reported without a job's name
    check_settings(config, train=False)
    for line in past_lines(config):
        print(line, file=sys.stderr)
    launcher = instantiate(config["launcher"], _convert_="all")
    launcher.check()
    common = shared(overrides, parsed)
    batches = Batches(launcher, config["workers"], common, {tuple(first): config})
    try:
        multirun(batches.run, [text for text in overrides if text not in common])
    except Stopped:
        return _stopped(batches.work)
    except JobFailedError:
        pass
    if not batches.work:
        raise UserError("the sweep has no jobs: its ranges and globs match nothing; widen them")
    reported = _report(batches.jobs, overrides, parsed)
    write_compared(batches.jobs, Console(), table=not reported)
    return _failed(batches.work)


class Batches:
    """Runs the jobs that a sweeper asks for, batch by batch, and collects their results.

    Args:
        launcher: starts the jobs.
        workers: number of jobs that run at the same time.
        shared: overrides that every job gets and the sweeper does not see.
        composed: configurations of jobs that are composed already.
    """

    def __init__(
        self,
        launcher: Launcher,
        workers: int,
        shared: Sequence[str] = (),
        composed: Composed | None = None,
    ) -> None:
        self.launcher, self.workers, self.shared = launcher, workers, shared
        self.composed = composed or {}
        self.display = Display(launcher.slots(workers))
        self.jobs: list[Job] = []
        self.work: list[Work] = []

    def run(self, batch: Sequence[Sequence[str]]) -> Sequence[JobReturn]:
        """Check all jobs, run the unfinished ones, return the metric of each.

        Raises:
            UserError: a job is not valid; no job has started then.
            Stopped: a signal stopped the sweep.
        """
        if not batch:
            return []
        jobs = plan([[*overrides, *self.shared] for overrides in batch], self.composed)
        engine = Engine([*prerequisites(jobs), *jobs], self.launcher, self.workers, self.display)
        self.jobs += jobs
        self.work += engine.run()
        if engine.stops:
            raise Stopped
        return [_return(job, engine.work[job.key]) for job in jobs]


class QuietJobReturn(JobReturn):
    """The result of a job for Hydra, whose own class prints a further line for a failed job."""

    @property
    def return_value(self) -> Any:
        if isinstance(self._return_value, JobFailedError):
            raise self._return_value
        return self._return_value

    @return_value.setter
    def return_value(self, value: Any) -> None:
        self._return_value = value


def _return(job: Job, work: Work) -> JobReturn:
    result = QuietJobReturn(overrides=job.overrides, task_name="train")
    if work.state is State.DONE:
        result.status = JobStatus.COMPLETED
        result.return_value = job.result()["metrics"].get(job.metric, math.nan)
    else:
        result.status = JobStatus.FAILED
        result.return_value = JobFailedError(f"{job.label}: {work.why}")
    return result


def multirun(run: RunBatch, overrides: list[str]) -> None:
    """Run Hydra's sweeper, which calls `run` with each batch of jobs.

    Args:
        run: returns the results of a batch of jobs, each given by its overrides.
        overrides: of the sweep.

    Raises:
        UserError: Hydra rejects the overrides.
    """
    own_sweeper = any(text.lstrip("+").startswith("hydra/sweeper=") for text in overrides)
    try:
        with _hydra() as hydra, tempfile.TemporaryDirectory() as scratch:
            hydra.multirun(
                config_name="config",
                task_function=run,
                overrides=[
                    *overrides,
                    "hydra/launcher=chimera",
                    *(["hydra/sweeper=chimera"] if not own_sweeper else []),
                    f"hydra.sweep.dir={scratch}",  # Hydra always writes to this folder
                    "hydra/job_logging=none",
                    "hydra/hydra_logging=none",
                ],
                with_log_configuration=False,
            )
    except (HydraException, OmegaConfBaseException) as error:
        cause = error.__cause__ if isinstance(error, ConfigCompositionException) else error
        raise UserError(" ".join(str(cause or error).split())) from error


@contextmanager
def _hydra() -> Iterator[Any]:
    register_roots()
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        yield GlobalHydra.instance().hydra


def _report(jobs: list[Job], overrides: Sequence[str], parsed: Sequence[Override]) -> bool:
    """Write and print the report of a table if all jobs are rows of this table; whether it did."""
    names = {(job.config.get("table") or {}).get("name") for job in jobs}
    name = names.pop()
    if names or not name:
        return False
    common, paper = [], str(name).partition("/")[0]
    for text, override in zip(overrides, parsed, strict=True):
        if override.key_or_group in ("seed", name, paper) or is_hydra(override.key_or_group):
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
    summary = write(name, common, seeds, configs=configs)
    console = Console()
    show(summary, console)
    console.print(str(report_folder(summary)), highlight=False, soft_wrap=True, markup=False)
    return True


def _failed(work: list[Work]) -> int:
    """Print a line for each failed job; return the exit code."""
    failed = [w for w in work if w.state is State.FAILED]
    for w in failed:
        log = f"; see {w.log}" if w.started is not None else ""
        print(f"failed: {w.job.label}: {w.why}{log}", file=sys.stderr)
    return int(bool(failed))


def _stopped(work: list[Work]) -> int:
    """Print failed jobs and the number of finished ones; return the exit code."""
    done = sum(w.state is State.DONE for w in work)
    _failed(work)
    print(
        f"stopped with {done} of {len(work)} jobs done; run the same command again to continue",
        file=sys.stderr,
    )
    return 130
