"""Search for good settings: `python train.py -m optim.lr=interval(1e-4,1e-2) search.trials=20`.

Optuna proposes the trials; each is a run of its own, started by the sweep's scheduler. A run writes
its validations as it goes, and asha stops it, saved, where it is not among the best. The same
command goes on with a search that was stopped or killed: its study is a sqlite file.
The draws of a trial depend on the search's seed and the trial's number alone, not on when the
search was stopped. The space of a search are the overrides with ranges, in Hydra's syntax:

    optim.lr=interval(1e-4,1e-2)                 any number between
    optim.lr=tag(log,interval(1e-4,1e-2))        the same, even in its logarithm
    model.depth=int(interval(2,8))               any integer, both ends included
    model.dim=range(64,257,64)                   64, 128, 192, 256
    mixer=retnet,attention   mixer=glob(*)       one of these; also choice(…)
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock, Timeout
from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep
from hydra.utils import instantiate

from chimera.config.arguments import read
from chimera.config.compose import compose, plain
from chimera.config.groups import groups
from chimera.config.scale import past_lines
from chimera.config.tables import load
from chimera.errors import UserError, library, one_line
from chimera.paths import runs_root
from chimera.program import command_name
from chimera.report.formatting import show_grid
from chimera.safe_io import make_folder, read_json, write_json
from chimera.sweep.compose_jobs import compose_jobs, prerequisites, values_of
from chimera.sweep.job import FINISHED, Job, State
from chimera.sweep.local import Handle, Launcher
from chimera.sweep.outcome import compare, exit_code
from chimera.sweep.scheduler import Display, Scheduler
from chimera.train.check import Once, check_settings
from chimera.types import NonNegativeInt, PositiveInt

USAGE = f"{command_name('train')} -m optim.lr=interval(1e-4,1e-2) search.trials=20"
#: Optuna's distributions by the key of their override, with a `+` if it has one.
Space = Mapping[str, Any]


@dataclass(frozen=True)
class Search:
    """Settings of a search, `search.<name>=<value>`.

    Args:
        trials: number of trials, those of earlier commands of this search included.
        sampler: `tpe` (Tree-structured Parzen Estimator) or `random`.
        startup: random trials before TPE begins.
        pruner: `asha` stops a trial at a rung if its validation is not among the best there
            (asynchronous successive halving, arXiv 1810.05934); `none` trains all to their end.
        reduction: of asha: one in so many trials passes a rung, and each rung has so many times the
            steps of the one before.
        min_steps: of asha: optimiser steps of the first rung.
        metric: of run.json, to be optimised; default the table's, or val/perplexity.
        better: which values of it are better.
        seed: of the sampler.
    """

    trials: PositiveInt = 20
    sampler: Literal["tpe", "random"] = "tpe"
    startup: PositiveInt = 10
    pruner: Literal["none", "asha"] = "none"
    reduction: PositiveInt = 4
    min_steps: PositiveInt = 100
    metric: str = ""
    better: Literal["lower", "higher"] = "lower"
    seed: NonNegativeInt = 0


@dataclass(frozen=True)
class Trial:
    """One trial: its number in the study, from 0, and the overrides of the searched settings."""

    number: int
    overrides: tuple[str, ...]


def optuna() -> Any:
    """The library.

    Raises:
        UserError: it is not installed.
    """
    return library("optuna", "search.*", "search")


def search_space(parsed: Sequence[Override]) -> Space:
    """The settings that are searched.

    Raises:
        UserError: an empty or reversed range, or an unknown tag.
    """
    return {o.get_key_element(): _distribution(o) for o in parsed if o.is_sweep_override()}


def _distribution(override: Override) -> Any:
    value = override.value()
    text = override.input_line
    kinds = optuna().distributions
    if isinstance(value, IntervalSweep | RangeSweep) and (unknown := value.tags - {"log"}):
        raise UserError(f"{text}: tag {', '.join(unknown)} is not known; the only one is log")
    try:
        if isinstance(value, IntervalSweep):
            whole = isinstance(value.start, int) and isinstance(value.end, int)
            kind = kinds.IntDistribution if whole else kinds.FloatDistribution
            return kind(value.start, value.end, log="log" in value.tags)
        if isinstance(value, RangeSweep):
            values_of(override)  # refuses an empty range
            values = list(value.range())
            whole = all(isinstance(number, int) for number in values)
            kind = kinds.IntDistribution if whole else kinds.FloatDistribution
            return kind(min(values), max(values), log="log" in value.tags, step=abs(value.step))
        return kinds.CategoricalDistribution(tuple(dict.fromkeys(values_of(override))))
    except ValueError as error:
        raise UserError(f"{text} is no range: {one_line(error)}") from error


def ends(distribution: Any) -> tuple[Any, ...]:
    """The values that show whether all are allowed: both ends, or every name."""
    return getattr(distribution, "choices", None) or (distribution.low, distribution.high)


def override(key: str, value: Any) -> str:
    """The override that sets a value; a number in six digits."""
    return f"{key}={f'{value:.6g}' if isinstance(value, float) else value}"


class Study:
    """The study of one search.

    Args:
        file: sqlite file; made if it is missing.
        space: what is searched.
        settings: of the search.
    """

    def __init__(self, file: Path, space: Space, settings: Search) -> None:
        self.optuna = optuna()
        self.optuna.logging.set_verbosity(self.optuna.logging.ERROR)
        self.space = space
        self.settings = settings
        file.parent.mkdir(parents=True, exist_ok=True)
        pruner = self.optuna.pruners.NopPruner()
        if settings.pruner == "asha":
            pruner = self.optuna.pruners.SuccessiveHalvingPruner(
                min_resource=settings.min_steps, reduction_factor=settings.reduction
            )
        self._study = self.optuna.create_study(
            storage=f"sqlite:///{file.absolute()}",
            study_name="search",
            load_if_exists=True,
            pruner=pruner,
            direction={"lower": "minimize", "higher": "maximize"}[settings.better],
        )

    @property
    def count(self) -> int:
        """Number of trials so far."""
        return len(self._all())

    def unfinished(self) -> list[Trial]:
        """Trials that were begun and have no result: those of a search that was stopped."""
        return [
            self._trial(found)
            for found in self._all()
            if not found.state.is_finished() and len(found.params) == len(self.space)
        ]

    def ask(self) -> Trial:
        """Begin the next trial."""
        digest = hashlib.sha256(f"{self.settings.seed} {self.count}".encode()).digest()
        seed = int.from_bytes(digest[:4], "big")
        if self.settings.sampler == "random":
            self._study.sampler = self.optuna.samplers.RandomSampler(seed=seed)
        else:
            self._study.sampler = self.optuna.samplers.TPESampler(
                seed=seed, n_startup_trials=self.settings.startup, constant_liar=True
            )
        return self._trial(self._study.ask(dict(self.space)))

    def report(self, trial: Trial, values: Sequence[tuple[int, float]]) -> bool:
        """Report the validations of a trial, by step; returns whether it should be pruned."""
        found = self._all()[trial.number]
        asked = self.optuna.trial.Trial(self._study, found._trial_id)
        for step, value in values:
            if step not in found.intermediate_values:
                asked.report(value, step)
                if math.isfinite(value) and asked.should_prune():
                    return True
        return False

    def tell(self, trial: Trial, state: State, value: float | None = None) -> None:
        """End a trial; one that is not pruned and has no finite value has failed."""
        states = self.optuna.trial.TrialState
        if value is not None and math.isfinite(value):
            self._study.tell(trial.number, value, skip_if_finished=True)
        else:
            ended = states.PRUNED if state is State.PRUNED else states.FAIL
            self._study.tell(trial.number, state=ended, skip_if_finished=True)

    def trials(self) -> list[tuple[Trial, str, float | None]]:
        """All trials with their state, and the value of the complete ones."""
        complete = self.optuna.trial.TrialState.COMPLETE
        return [
            (self._trial(t), t.state.name.lower(), t.value if t.state is complete else None)
            for t in self._all()
        ]

    def _all(self) -> list[Any]:
        return list(self._study.get_trials(deepcopy=False))

    def _trial(self, found: Any) -> Trial:
        params = found.params
        return Trial(
            found.number, tuple(override(key, params[key]) for key in self.space if key in params)
        )


def search(overrides: Sequence[str], parsed: Sequence[Override], own: Sequence[str]) -> int:
    """Run a search; return the exit code: 0, 1 if a trial failed, 130 if it was stopped.

    Args:
        overrides: of the command line, without those of the search.
        parsed: the same.
        own: the overrides `search.<name>=<value>`.

    Raises:
        UserError: a setting or range that is not valid; nothing has been written then.
    """
    optuna()
    settings = read(Search, [text.removeprefix("search.") for text in own], USAGE)
    space = search_space(parsed)
    if not space:
        raise UserError(f"search.* is given and no setting has a range; write {USAGE}")
    pairs = zip(overrides, parsed, strict=True)
    fixed = [text for text, each in pairs if not each.is_sweep_override()]
    config = check_ends(space, fixed)
    launcher = instantiate(config["launcher"], _convert_="all")
    launcher.check()
    if not settings.metric and (name := (config.get("table") or {}).get("name")):
        table = load(name)
        settings = replace(settings, metric=table.metric, better=table.better)
    file = study_file(overrides, settings)
    make_folder(file.parent, of=file.parent, key="CHIMERA_RUNS")
    try:
        with FileLock(file.with_suffix(".lock"), blocking=False):
            study = Study(file, space, settings)
            scheduler = SearchScheduler(study, fixed, launcher, config["workers"])
            scheduler.run()
    except Timeout as error:
        raise UserError(f"another process is running this search ({file}); wait for it") from error
    show(scheduler)
    trials = [trial for trial, _, _ in scheduler.study.trials() if trial.overrides]
    compare([scheduler.job(trial) for trial in trials], table=False)
    for why in scheduler.refused.values():
        print(f"failed: {why}", file=sys.stderr)
    return exit_code(scheduler) or int(bool(scheduler.refused))


def check_ends(space: Space, fixed: Sequence[str]) -> dict[str, Any]:
    """Check each end of each range and each value of a list, with the first of the others.

    Returns:
        The configuration of the first job.

    Raises:
        UserError: one of them is not valid.
    """
    once = Once()
    start = {key: override(key, ends(distribution)[0]) for key, distribution in space.items()}
    config = plain(compose([*start.values(), *fixed]))
    check_settings(config, once)
    for line in past_lines(config):
        print(line, file=sys.stderr)
    for key, distribution in space.items():
        if key.lstrip("+") in groups():
            continue  # the names are known; whether parts fit together, each trial says
        for value in ends(distribution):
            texts = [*(start | {key: override(key, value)}).values(), *fixed]
            check_settings(plain(compose(texts)), once)
    return config


def study_file(overrides: Sequence[str], settings: Search) -> Path:
    """File of a search: the same for the same command with another number of trials or workers."""
    kept = sorted(text for text in overrides if not text.startswith(("workers=", "launcher")))
    facts = {key: value for key, value in asdict(settings).items() if key != "trials"}
    digest = hashlib.sha256(json.dumps([kept, facts], sort_keys=True).encode()).hexdigest()[:8]
    return runs_root() / ".search" / f"{digest}.sqlite"


class SearchScheduler(Scheduler):
    """Runs the trials of a search, asking for the next one when there is room.

    Args:
        study: proposes and judges.
        fixed: overrides that all trials have.
        launcher: starts the runs.
        workers: number of runs at the same time.
        display: shows the runs; None: in the terminal.
    """

    def __init__(
        self,
        study: Study,
        fixed: Sequence[str],
        launcher: Launcher,
        workers: int,
        display: Display | None = None,
    ) -> None:
        super().__init__([], launcher, workers, display)
        self.study = study
        self.fixed = tuple(fixed)
        self.refused: dict[int, str] = {}  # trials that are no valid run, with the reason
        self._trials: dict[Path, list[Trial]] = {}
        self._pruned: dict[Path, str] = {}
        self._seen: dict[Path, int] = {}
        self._begun = False

    @property
    def metric(self) -> str:
        return self.study.settings.metric or "val/perplexity"

    def feed(self) -> bool:
        """Tell results, prune, ask for trials; returns whether more will come."""
        for path, trials in self._trials.items():
            self._trials[path] = [t for t in trials if not self._tell(self.jobs[path], t)]
        if self.stops:
            return False
        if not self._begun:
            self._begun = True
            for trial in self.study.unfinished():
                self._begin(trial)
        for job in self.jobs.values():
            if job.handle and job.key in self._trials:
                self._prune(job, job.handle)
        limit = self.study.settings.trials
        while self.study.count < limit and self._unfinished() < self.workers:
            self._begin(self.study.ask())
        return self.study.count < limit or any(self._trials.values())

    def _unfinished(self) -> int:
        return sum(job.state not in FINISHED for job in self.jobs.values())

    def _begin(self, trial: Trial) -> None:
        try:
            job = self.job(trial)
            for needed in prerequisites([job]):
                self.add(needed)
        except UserError as error:
            self.study.tell(trial, State.FAILED)
            self.refused[trial.number] = f"{' '.join(trial.overrides)}: {one_line(error)}"
            return
        self.add(job)
        self._trials.setdefault(job.key, []).append(trial)

    def job(self, trial: Trial) -> Job:
        """The run of a trial.

        Raises:
            UserError: its settings do not go together.
        """
        (job,) = compose_jobs([[*trial.overrides, *self.fixed]])
        return replace(job, label=" ".join(trial.overrides))

    def _tell(self, job: Job, trial: Trial) -> bool:
        """Tell the study how a trial ended; returns False while it has not."""
        if job.state in (State.DONE, State.PRUNED, State.FAILED):
            value = job.value(self.metric) if job.state is State.DONE else None
            self.study.tell(trial, job.state, value)
        return job.state in FINISHED  # one that is stopped goes on with the next command

    def _prune(self, job: Job, handle: Handle) -> None:
        """Report new validations of a running trial, and ask it to stop where asha says so."""
        path = job.key
        reported = read_json(path / "validations.json")
        values = [(int(step), float(value)) for step, value in reported.get("values", [])]
        if path in self._pruned or len(values) <= self._seen.get(path, 0):
            return
        self._seen[path] = len(values)
        if reported["better"] != self.study.settings.better:
            values = [(step, -value) for step, value in values]
        verdicts = [self.study.report(trial, values) for trial in self._trials[path]]
        if all(verdicts):
            step, value = reported["values"][-1]
            self._pruned[path] = f"pruned at step {step}: {reported['monitor']} {value:.5g}"
            handle.interrupt()

    def _poll(self, job: Job, handle: Handle) -> None:
        why = self._pruned.get(job.key)
        if why is None or self.stops:
            super()._poll(job, handle)
        elif handle.poll() is None:
            return
        elif job.status().get("state") == "DONE":  # it was at its end
            job.finish()
        else:
            status = job.status() | {"state": "STOPPED", "pruned": True, "why": why}
            write_json(job.key / "status.json", status)
            job.become(State.PRUNED, why)


def show(scheduler: SearchScheduler) -> None:
    """Print the table of all trials, the best first; a pruned one that was revived has a value."""
    sign = 1.0 if scheduler.study.settings.better == "lower" else -1.0
    lines: list[tuple[float, list[str]]] = []
    for trial, state, value in scheduler.study.trials():
        directory = ""
        if state != "fail" and trial.overrides:
            job = scheduler.job(trial)
            status = job.status()
            directory = job.directory.path.name
            if value is None and status.get("state") == "DONE":
                value = job.value(scheduler.metric)
                state = "revived"
            state = str(status["why"]) if status.get("pruned") else state
        order = float("inf") if value is None else sign * value
        number = "" if value is None else f"{value:.5g}"
        settings = " ".join(trial.overrides)
        lines.append((order, [str(trial.number), number, state, settings, directory]))
    title = f"{len(lines)} trials, {scheduler.metric}"
    heads = ("trial", scheduler.metric, "state", "settings", "run")
    show_grid(title, heads, (), [cells for _, cells in sorted(lines, key=itemgetter(0))], width=200)
    if any("pruned" in cells[2] for _, cells in lines):
        fixed = " ".join(scheduler.fixed)
        again = f"{command_name('train')} <its settings> {fixed}"
        print(f"a pruned run goes on by its own command: {again}")
