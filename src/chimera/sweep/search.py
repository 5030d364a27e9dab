"""Search for good settings: `python train.py -m optim.lr=interval(1e-4,1e-2) search.trials=20`.

Optuna proposes the trials; each is a run of its own, started by the sweep's engine. A run writes
its validations as it goes, and asha stops it, saved, where it is not among the best. The same
command goes on with a search that was stopped or killed.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from hydra.core.override_parser.types import Override
from hydra.utils import instantiate
from rich.console import Console
from rich.table import Table
from rich.text import Text

from chimera.config.arguments import read
from chimera.config.compose import compose, plain
from chimera.config.groups import groups
from chimera.config.scale import past_lines
from chimera.errors import UserError, one_line
from chimera.paths import runs_root
from chimera.program import spelt
from chimera.rundir.safe_io import make_folder, read_json, write_json
from chimera.sweep.compared import write_compared
from chimera.sweep.display import Display
from chimera.sweep.engine import Engine
from chimera.sweep.local import Handle, Launcher
from chimera.sweep.overrides import first_job
from chimera.sweep.plan import Job, plan, prerequisites
from chimera.sweep.space import Dimension, space
from chimera.sweep.study import Search, Study, Trial, library
from chimera.sweep.work import FINISHED, State, Work
from chimera.train.check import Once, check_settings

#: Start of the overrides that are settings of a search.
PREFIX = "search."
USAGE = f"{spelt('train')} -m optim.lr=interval(1e-4,1e-2) search.trials=20"


def search(overrides: Sequence[str], parsed: Sequence[Override], own: Sequence[str]) -> int:
    """Run a search; return the exit code: 0, 1 if a trial failed, 130 if it was stopped.

    Args:
        overrides: of the command line, without those of the search.
        parsed: the same.
        own: the overrides `search.<name>=<value>`.

    Raises:
        UserError: a setting or range that is not valid; nothing has been written then.
    """
    library()
    settings = read(Search, [text.removeprefix(PREFIX) for text in own], USAGE)
    dimensions = space(parsed)
    if not dimensions:
        raise UserError(f"search.* is given and no setting has a range; write {USAGE}")
    pairs = list(zip(overrides, parsed, strict=True))
    fixed = [text for text, override in pairs if not override.is_sweep_override()]
    config = check_ends(dimensions, fixed, first_job(overrides, parsed))
    launcher = instantiate(config["launcher"], _convert_="all")
    launcher.check()
    table = config.get("table") or {}
    if not settings.metric and table.get("metric"):
        settings = replace(settings, metric=table["metric"], better=table["better"])
    file = study_file(overrides, settings)
    make_folder(file.parent, of=file.parent, key="CHIMERA_RUNS")
    try:
        with FileLock(file.with_suffix(".lock"), blocking=False):
            study = Study(file, dimensions, settings)
            engine = SearchEngine(study, fixed, launcher, config["workers"])
            work = engine.run()
    except Timeout as error:
        raise UserError(f"another process is running this search ({file}); wait for it") from error
    show(engine, Console())
    trials = [trial for trial, _, _ in engine.study.trials() if trial.overrides]
    write_compared([engine.job(t) for t in trials], Console(), table=False)
    failed = [w for w in work if w.state is State.FAILED]
    for w in failed:
        print(f"failed: {w.job.label}: {w.why}; see {w.log}", file=sys.stderr)
    for why in engine.refused.values():
        print(f"failed: {why}", file=sys.stderr)
    if engine.stops:
        print("stopped; run the same command again to continue", file=sys.stderr)
        return 130
    return int(bool(failed or engine.refused))


def check_ends(
    dimensions: Sequence[Dimension], fixed: Sequence[str], first: list[str]
) -> dict[str, Any]:
    """Check the first job, and each end of each range and each value of a list with it.

    Returns:
        The configuration of the first job.

    Raises:
        UserError: one of them is not valid.
    """
    config = plain(compose(first))
    once = Once()
    check_settings(config, once)
    for line in past_lines(config):
        print(line, file=sys.stderr)
    start = {d.key: d.override(d.ends[0]) for d in dimensions}
    for dimension in dimensions:
        if dimension.key.lstrip("+") in groups():
            continue  # the names are known; whether parts fit together, each trial says
        for value in dimension.ends:
            texts = [*(start | {dimension.key: dimension.override(value)}).values(), *fixed]
            check_settings(plain(compose(texts)), once)
    return config


def study_file(overrides: Sequence[str], settings: Search) -> Path:
    """File of a search: the same for the same command with another number of trials or workers."""
    kept = sorted(text for text in overrides if not text.startswith(("workers=", "launcher")))
    facts = {key: value for key, value in asdict(settings).items() if key != "trials"}
    digest = hashlib.sha256(json.dumps([kept, facts], sort_keys=True).encode()).hexdigest()[:8]
    return runs_root() / ".search" / f"{digest}.sqlite"


class SearchEngine(Engine):
    """Runs the trials of a search, asking for the next one when there is room.

    Args:
        study: proposes and judges.
        fixed: overrides that all trials have.
        launcher: starts the runs.
        workers: number of runs at the same time.
        display: shows the runs.
    """

    def __init__(
        self,
        study: Study,
        fixed: Sequence[str],
        launcher: Launcher,
        workers: int,
        display: Any = None,
    ) -> None:
        super().__init__([], launcher, workers, display or Display(launcher.slots(workers)))
        self.study, self.fixed = study, tuple(fixed)
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
            for trial in list(trials):
                if self._tell(self.work[path], trial):
                    trials.remove(trial)
        if self.stops:
            return False
        if not self._begun:
            self._begun = True
            for trial in self.study.unfinished():
                self._begin(trial)
        for work in self.work.values():
            if work.handle and work.job.key in self._trials:
                self._prune(work, work.handle)
        while self._room() and self.study.count < self.study.settings.trials:
            self._begin(self.study.ask())
        return self.study.count < self.study.settings.trials or any(self._trials.values())

    def _room(self) -> bool:
        return sum(work.state not in FINISHED for work in self.work.values()) < self.workers

    def _begin(self, trial: Trial) -> None:
        try:
            job = self.job(trial)
            for needed in prerequisites([job]):
                self.add(needed)
        except UserError as error:
            self.study.tell(trial, "failed")
            self.refused[trial.number] = f"{' '.join(trial.overrides)}: {one_line(error)}"
            return
        self.add(job)
        self._trials.setdefault(job.key, []).append(trial)

    def job(self, trial: Trial) -> Job:
        """The run of a trial.

        Raises:
            UserError: its settings do not go together.
        """
        (job,) = plan([[*trial.overrides, *self.fixed]])
        return replace(job, label=" ".join(trial.overrides))

    def _tell(self, work: Work, trial: Trial) -> bool:
        """Tell the study how a trial ended; returns False while it has not."""
        if work.state is State.DONE:
            value = work.job.result().get("metrics", {}).get(self.metric)
            self.study.tell(trial, "done", value)
        elif work.state is State.PRUNED:
            self.study.tell(trial, "pruned")
        elif work.state is State.FAILED:
            self.study.tell(trial, "failed")
        else:
            return work.state is State.STOPPED  # goes on with the next command
        return True

    def _prune(self, work: Work, handle: Handle) -> None:
        """Report new validations of a running trial, and ask it to stop where asha says so."""
        path = work.job.key
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

    def _poll(self, work: Work, handle: Handle) -> None:
        path = work.job.key
        why = self._pruned.get(path)
        if why is None or self.stops:
            super()._poll(work, handle)
        elif handle.poll() is None:
            return
        elif work.status.get("state") == "DONE":  # it was at its end
            work.finish()
        else:
            status = work.status | {"state": "STOPPED", "pruned": True, "why": why}
            write_json(path / "status.json", status)
            work.become(State.PRUNED, why)


def show(engine: SearchEngine, console: Console) -> None:
    """Print the table of all trials, the best first; a pruned one that was revived has a value."""
    sign = 1.0 if engine.study.settings.better == "lower" else -1.0
    lines: list[tuple[float, list[str]]] = []
    for trial, state, value in engine.study.trials():
        directory = ""
        if state != "fail" and trial.overrides:
            job = engine.job(trial)
            directory, status = job.directory.path.name, job.status()
            if value is None and status.get("state") == "DONE":
                value, state = job.result().get("metrics", {}).get(engine.metric), "revived"
            state = str(status["why"]) if status.get("pruned") else state
        order = float("inf") if value is None else sign * value
        number = "" if value is None else f"{value:.5g}"
        lines.append(
            (order, [str(trial.number), number, state, " ".join(trial.overrides), directory])
        )
    grid = Table(title=Text(f"{len(lines)} trials, {engine.metric}"), title_justify="left")
    for name in ("trial", engine.metric, "state", "settings", "run"):
        grid.add_column(Text(name), overflow="fold")
    for _, cells in sorted(lines, key=lambda line: line[0]):
        grid.add_row(*map(Text, cells))
    wide = console if console.is_terminal else Console(file=console.file, width=200)
    wide.print(grid)
    if any("pruned" in cells[2] for _, cells in lines):
        fixed = " ".join(engine.fixed)
        own = f"{spelt('train')} <its settings> {fixed}"
        print(f"a pruned run goes on by its own command: {own}")
