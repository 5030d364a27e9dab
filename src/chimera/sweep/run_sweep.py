"""Run `python train.py -m …`: compose the jobs, run each in its own process, report the table."""

from __future__ import annotations

import sys

from hydra.core.override_parser.types import Override
from hydra.utils import instantiate

from chimera.config.compose import compose, plain
from chimera.config.overrides import canonical, check_choices, repeated
from chimera.config.scale import past_lines
from chimera.config.start_model import applicable
from chimera.errors import UserError
from chimera.program import command_name
from chimera.sweep.compose_jobs import (
    check_sweep,
    compose_jobs,
    list_jobs,
    prerequisites,
    sweep_variable,
)
from chimera.sweep.outcome import compare, exit_code, report
from chimera.sweep.scheduler import Scheduler
from chimera.train.check import check_settings


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
        raise UserError(f"a sweep varies something, as in {command_name('train')} -m seed=0,1,2")
    with sweep_variable(overrides, parsed):
        if own:
            from chimera.sweep.search import search

            return search(overrides, parsed, [text.lstrip("+") for text in own])
        return _sweep(overrides, parsed)


def _sweep(overrides: list[str], parsed: list[Override]) -> int:
    batch = list_jobs(overrides, parsed)
    first = applicable(batch[0])
    config = plain(compose(first))  # so that errors of all jobs are reported without a job's name
    check_settings(config, train=False)
    for line in (*repeated(overrides), *past_lines(config)):
        print(line, file=sys.stderr)
    launcher = instantiate(config["launcher"], _convert_="all")
    launcher.check()
    jobs = compose_jobs(batch, {tuple(first): config})
    scheduler = Scheduler([*prerequisites(jobs), *jobs], launcher, config["workers"])
    scheduler.run()
    if not scheduler.stops:
        reported = report(jobs, overrides, parsed)
        compare(jobs, table=not reported)
    return exit_code(scheduler)
