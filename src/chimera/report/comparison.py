"""Read any runs and group them by the settings in which they differ, the best group first.

Runs that differ in their seed only are one group. With `by=` a group may have runs that differ in
more; it then says in what. Only finished runs of one task, on the same data, for as many steps of
as many tokens, are averaged or ranked together: there is a table for each such set, and one that
lists the runs that are not finished. Everything in a run's directory may be a
stranger's: it is read as data, and a run that cannot be read hides no other.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from chimera.config import tables
from chimera.config.schema import shown
from chimera.dotted import flatten
from chimera.errors import UserError, nearest, one_line
from chimera.report import formatting
from chimera.report.stats import Spread, finite, spread
from chimera.rundir.directory import RunDir
from chimera.rundir.identity import FREE, Text, apart, identity_settings, text_of
from chimera.rundir.records import LIST, RUNS, Record, records
from chimera.rundir.steps import read as read_steps
from chimera.safe_io import check_links

#: Choices without a say in the numbers, or whose effect other keys hold.
NOT_SHOWN = ("preset", "debug", "scale", "logger", "launcher", "callbacks", "guard", "trainer")
#: Settings that runs of one table share, besides the tokens of a step: groups and single keys.
SHARED_GROUPS = ("data", "tokenizer")
SHARED = (
    "task",
    "task.mask_ratio",
    "trainer.max_steps",
    "trainer.max_epochs",
    "trainer.limit_train_batches",
    "trainer.limit_val_batches",
    "trainer.limit_test_batches",
)
#: Name of the tokens of a step, and of the hash of the text, among those settings.
TOKENS = "tokens per step"
TEXT = "text"
#: Facts of a run: dotted key in run.json, title, and how a value is written.
FACTS: dict[str, tuple[str, str, Callable[[float], str]]] = {
    "tokens_per_second": ("tokens_per_second", "tokens/s", "{:,.0f}".format),
    "peak_memory_gb": ("peak_memory_gb", "memory, GB", "{:.2f}".format),
    "wall_seconds": ("wall_seconds", "time", formatting.clock),
    "parameters": ("parameters.total", "parameters", formatting.count),
    "mfu": ("mfu", "MFU", "{:.1%}".format),
}
#: Horizontal axes of curves, and their labels.
AXES = {
    "steps": "optimiser steps",
    "tokens": "training tokens",
    "seconds": "seconds of training",
    "FLOPs": "FLOPs of matrix products",
}
#: Points of a curve of one run, and of the mean of several.
POINTS = 160
GRID = 120
#: Times the median step that a gap between two rows may be before it counts as a pause of the run.
PAUSE = 50.0
#: Metrics by which runs are ordered if the command line names none.
USUAL = ("val/perplexity", "val/loss", "val/accuracy", "test/perplexity", "test/loss")
#: Words in the names of metrics of which lower values are better.
LOWER = {"loss", "perplexity", "error", "latency", "seconds", "bits"}
#: Columns of a step log that are read.
LOG = ("global_step", "loss", "seconds")
#: What reading a run of a stranger may raise.
ODD = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, OSError)
#: What is shown for a key that a run doesn't have.
ABSENT = "–"
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Run:
    """A run of a comparison.

    Args:
        path: its directory; of a record, the one that names it.
        state: of its status.json, `RUNNING` only if its process is alive.
        settings: flat keys on which its numbers depend, and its choices, as text.
        metrics: of its final validation and test.
        facts: speed, memory, time, parameters, by the names of `FACTS`.
        seed: of its random numbers.
        table: name of the table that it is a row of; empty for other runs.
        tokens: of an optimiser step without padding; None if that is not known.
        flops: of a token in training; None likewise.
        text: hashes of its training text; None in records of older versions.
        steps: columns of the step log of a record; None: it is in the directory.
    """

    path: Path
    state: str
    settings: dict[str, str]
    metrics: dict[str, float] = field(default_factory=dict)
    facts: dict[str, float] = field(default_factory=dict)
    seed: str = ""
    table: str = ""
    tokens: float | None = None
    flops: float | None = None
    text: Text | None = None
    steps: dict[str, list[Any]] | None = None

    @cached_property
    def log(self) -> Array:
        """Step, mean loss since the last point, seconds without pauses [n 3] of the training."""
        try:
            log = read_steps(self.path / "steps.csv") if self.steps is None else self.steps
        except UserError:
            return np.empty((0, 3))
        return thinned(pd.DataFrame(log, columns=LOG, dtype=float))

    def curve(self, axis: str) -> Array:
        """Place on one of `AXES` and loss [n 2]; no points if tokens or FLOPs are not known."""
        steps, losses, seconds = self.log.T
        tokens = steps * (self.tokens or math.nan)
        flops = tokens * (self.flops or math.nan)
        places = {"steps": steps, "tokens": tokens, "seconds": seconds, "FLOPs": flops}[axis]
        return np.stack([places, losses], 1)[np.isfinite(places)]

    @property
    def measurement(self) -> object:
        """Equal for a finished run and its copies; a run that is not finished has none."""
        numbers = sorted(self.metrics.items())
        same = (*sorted(self.settings.items()), *numbers, self.text)
        return same if self.state == "DONE" else self.path

    @property
    def shared(self) -> dict[str, str]:
        """What it has to share with the runs that it is averaged or ranked with."""
        kept = {TOKENS: ABSENT if self.tokens is None else f"{self.tokens:,.0f}"}
        for key, value in self.settings.items():
            group, _, name = key.partition(".")
            if key in SHARED or (group in SHARED_GROUPS and name not in FREE):
                kept[key] = value
        return kept


@dataclass(frozen=True)
class Group:
    """Finished runs that agree in the compared keys, or one run that is not finished.

    Args:
        table: title of its table.
        metric: by which its table is ordered.
        values: of the compared keys, as text.
        runs: of it, by seed.
        result: the metric of its runs; None without one.
        facts: mean of each fact of its runs.
    """

    table: str
    metric: str
    values: dict[str, str]
    runs: tuple[Run, ...]
    result: Spread | None
    facts: Mapping[Any, float]

    @property
    def label(self) -> str:
        """The values, with the names of their keys."""
        return " ".join(f"{key}={value}" for key, value in self.values.items()) or "all runs"

    @cached_property
    def differ(self) -> list[str]:
        """Keys other than the seed in which its runs differ: its spread is not that of seeds."""
        return differing([run.settings for run in self.runs])

    @property
    def count(self) -> str:
        """Its finished runs, called seeds only if they are; or the state of its unfinished one."""
        if self.runs[0].state != "DONE":
            return self.runs[0].state.lower()
        if self.differ:
            return f"{len(self.runs)} runs that differ in {', '.join(self.differ)}"
        seeds = len({run.seed for run in self.runs})
        repeated = f"{len(self.runs)} runs of " * (seeds < len(self.runs))
        return repeated + formatting.seeds(seeds)

    def band(self, axis: str) -> Array:
        """Place, mean, least and largest loss [n 4] over its runs, as far as all of them go."""
        curves = [curve for run in self.runs if len(curve := run.curve(axis))]
        if not curves:
            return np.empty((0, 4))
        first = max(c[0, 0] for c in curves)
        last = min(c[-1, 0] for c in curves)
        if len(curves) == 1 or last <= first:
            return max(curves, key=len)[:, [0, 1, 1, 1]]
        places = np.linspace(first, last, GRID)
        losses = np.stack([np.interp(places, *curve.T) for curve in curves])
        return np.stack([places, losses.mean(0), losses.min(0), losses.max(0)], 1)


@dataclass(frozen=True)
class Table:
    """Groups of comparable runs, the best first; or runs that are not finished, each a group.

    Args:
        title: what tells it from other tables; empty if it is the only one.
        metric: by which the groups are ordered.
        better: lower or higher.
        keys: in which the groups differ.
        groups: of runs; those without a result come last.
        finished: whether its runs are.
    """

    title: str
    metric: str
    better: str
    keys: tuple[str, ...]
    groups: tuple[Group, ...]
    finished: bool

    @property
    def order(self) -> str:
        """Its runs and their order, in words."""
        count = sum(len(group.runs) for group in self.groups)
        order = [f"{self.better} {self.metric} first"] * self.finished
        return f"{count} run{'s' * (count != 1)}, {': '.join(filter(None, [*order, self.title]))}"


@dataclass(frozen=True)
class Comparison:
    """Tables of comparable runs.

    Args:
        keys: in which the runs differ, or by which they were grouped.
        tables: those with most runs first; last the one of runs that are not finished.
        notes: sentences on what may not be compared.
        broken: what is wrong with directories that could not be read, by name.
    """

    keys: tuple[str, ...]
    tables: tuple[Table, ...]
    notes: tuple[str, ...]
    broken: dict[str, str]

    @property
    def groups(self) -> list[Group]:
        """All groups, in the order of the tables."""
        return [group for table in self.tables for group in table.groups]

    @property
    def runs(self) -> list[Run]:
        """All runs, in the order of their groups."""
        return [run for group in self.groups for run in group.runs]


def directories(places: Sequence[Path]) -> list[Path | Record]:
    """Runs, each once: those that are named, and those and the records in folders that are named.

    Raises:
        UserError: a place is neither.
    """
    found: dict[Path, Path | Record] = {}
    for place in places:
        if not place.is_dir():
            beside = place.parent.iterdir() if place.parent.is_dir() else ()
            close = nearest(place.name, [path.name for path in beside])
            raise UserError(f"{place} is no folder; name runs, or a folder that holds them{close}")
        inside: list[Path | Record] = [path for path in sorted(place.iterdir()) if is_run(path)]
        if is_run(place):
            inside = [place]
        if (place / LIST).is_file() or (place / RUNS).is_file():
            inside += records(place)
        if not inside:
            raise UserError(f"{place} holds no run; name runs, or a folder that holds them")
        for run in inside:
            found.setdefault(path_of(run).resolve(), run)
    return list(found.values())


def path_of(run: Path | Record) -> Path:
    """The directory of a run; of a record, the one that names it."""
    return run if isinstance(run, Path) else run.path


def is_run(path: Path) -> bool:
    """Whether a folder holds a run that has begun."""
    return (path / "config.yaml").is_file() and (path / "status.json").is_file()


def collect(found: Iterable[Path | Record]) -> tuple[list[Run], dict[Path, str]]:
    """The runs in these directories and records, and what is wrong with those that can't be read.

    Args:
        found: directories of runs, and records.
    """
    runs = []
    broken = dict[Path, str]()
    for each in found:
        try:
            runs.append(_read(each))
        except ODD as error:
            told = isinstance(error, UserError)
            said = error if told else f"its files are not those of a run: {error!r}"
            broken[path_of(each)] = one_line(said)
    return runs, broken


def _read(source: Path | Record) -> Run:
    """The run of a directory or of a record.

    Raises:
        UserError: a file of it cannot be read, is a link out of it, or nests too deep.
        KeyError, TypeError, ValueError, AttributeError, OSError: a file holds something else.
    """
    state = "DONE"
    steps = None
    if isinstance(source, Record):
        config = source.config
        record = source.result
        steps = source.steps
    else:
        directory = RunDir(source)
        check_links(source)
        state = one_line(directory.status().get("state"))[:40]
        state = "STOPPED" if state == "RUNNING" and not directory.is_running() else state
        config = directory.config()
        record = directory.record()
    choices = {k: v for k, v in config["choices"].items() if k not in NOT_SHOWN}
    settings = {**flatten(identity_settings(config)), **choices}
    table = config.get("table")
    facts = flatten(record)
    return Run(
        path=path_of(source),
        state=state,
        settings={_key(key): one_line(shown(value))[:200] for key, value in settings.items()},
        metrics=_numbers(record.get("metrics") or {}),
        facts=_numbers({name: facts.get(key) for name, (key, *_) in FACTS.items()}),
        seed=str(config.get("seed")),
        table=str(table.get("name")) if isinstance(table, dict) else "",
        tokens=finite(tokens_per_step(config)),
        flops=finite((record.get("flops") or {}).get("training")),
        text=text_of(record),
        steps=steps,
    )


def tokens_per_step(config: dict[str, Any]) -> int | None:
    """Tokens of an optimiser step without padding; None if the configuration does not say."""
    data = config["data"]
    length = data.get("seq_len") or config["model"].get("max_len")
    repeats = config["trainer"].get("accumulate_grad_batches") or 1
    factors = (length, data.get("batch_size"), repeats)
    return math.prod(factors) if all(isinstance(factor, int) for factor in factors) else None


def _key(text: object) -> str:
    return one_line(text)[:100]


def _numbers(values: dict[str, Any]) -> dict[str, float]:
    """The finite numbers of a mapping."""
    found = {_key(key): finite(value) for key, value in values.items()}
    return {key: value for key, value in found.items() if value is not None}


def thinned(log: pd.DataFrame) -> Array:
    """Step, mean loss since the last point, seconds since the first step [n 3] of a step log.

    Pauses between two processes of a run are left out of the seconds, and losses that are not
    finite.

    Args:
        log: with the columns `LOG`; about `POINTS` rows are kept.
    """
    log = log.replace([math.inf, -math.inf], math.nan).dropna(subset=["global_step", "seconds"])
    gaps = log["seconds"].diff().clip(lower=0.0)
    longest = PAUSE * gaps.median() + 1.0
    log = log.assign(seconds=gaps.fillna(0.0).clip(upper=longest).cumsum())
    parts = log.groupby(np.arange(len(log)) // max(1, math.ceil(len(log) / POINTS)))
    kept = parts.agg({"global_step": "last", "loss": "mean", "seconds": "last"})
    return kept.dropna().to_numpy(np.float64)


def compare(
    runs: Sequence[Run],
    *,
    by: Sequence[str] = (),
    metric: str | None = None,
    better: str | None = None,
    broken: dict[str, str] | None = None,
) -> Comparison:
    """Divide runs into tables of comparable ones, group those of a table, and order the groups.

    Args:
        runs: one or more; of copies of one run the first counts.
        by: keys to group by; runs that differ in others are averaged. Empty: all that differ.
        metric: of the order; None: that of the runs' table, or the first usual one that they have.
        better: lower or higher; None: by the metric's table or name.
        broken: for the result.

    Raises:
        UserError: a key or metric that no run has.
    """
    by = tuple(dict.fromkeys(by))
    _check(by, metric, runs)
    runs, copies = _once(runs)
    texts = Counter(text.settings for text in {run.text for run in runs} if text)
    sets: dict[tuple[tuple[str, str], ...], list[Run]] = {}
    for run in runs:
        own = run.shared if run.state == "DONE" else {}
        if own and run.text and texts[run.text.settings] > 1:
            own[TEXT] = run.text.tokens[:8]
        sets.setdefault(tuple(sorted(own.items())), []).append(run)
    apart_in = differing([dict(shared) for shared in sets if shared])
    found = []
    for shared, members in sorted(sets.items(), key=lambda one: (not one[0], -len(one[1]))):
        title = ", ".join(f"{key}={dict(shared).get(key, ABSENT)}" for key in apart_in)
        found.append(_table(title if shared else "not finished", members, by, metric, better))
    keys = by or tuple(differing([run.settings for run in runs]))
    notes = (
        _why_apart(found, apart_in),
        _why_no_seeds(found),
        copies,
        apart(run.text for run in runs),
    )
    return Comparison(keys, tuple(found), tuple(filter(None, notes)), broken or {})


def _once(runs: Sequence[Run]) -> tuple[list[Run], str]:
    """Runs without copies, and a sentence if there are copies; else it is empty."""
    first: dict[object, Run] = {}
    copies = [run for run in runs if first.setdefault(run.measurement, run) is not run]
    if not copies:
        return list(runs), ""
    run = copies[0]
    of = first[run.measurement]
    more = f" and {len(copies) - 1} more copies" * (len(copies) > 1)
    named = f"{one_line(run.path)}, a copy of {one_line(of.path)},"
    return list(first.values()), f"Runs count once: {named}{more} are left out."


def _why_apart(found: Sequence[Table], apart_in: Sequence[str]) -> str:
    """A sentence if there are several tables; else empty."""
    if len(found) < 2:
        return ""
    whys = [f"differ in {', '.join(apart_in)}"] if apart_in else []
    whys += ["are not finished"] * (not found[-1].finished)
    return (
        f"{len(found)} tables: runs that {' or '.join(whys)} are not averaged or ranked"
        " with the others."
    )


def _why_no_seeds(found: Sequence[Table]) -> str:
    """A sentence if runs are averaged that differ in more than the seed; else empty."""
    keys = dict.fromkeys(key for table in found for group in table.groups for key in group.differ)
    if not keys:
        return ""
    return (
        f"Some lines average runs that differ in {', '.join(keys)}: their ± is not that of seeds"
        " alone. Name these keys in by= to tell the runs apart."
    )


def _table(
    title: str, runs: Sequence[Run], by: Sequence[str], metric: str | None, better: str | None
) -> Table:
    """Group runs that may be compared, all of them finished or none, and order the groups."""
    finished = runs[0].state == "DONE"
    metric = metric or _metric(runs)
    better = better or _better(metric, runs)
    keys = tuple(by or differing([run.settings for run in runs]))
    if not finished and len({run.seed for run in runs}) > 1:
        keys = (*keys, "seed")
    together: dict[tuple[str, ...], list[Run]] = {}
    for run in sorted(runs, key=lambda run: (len(run.seed), run.seed, run.path.name)):
        values = [run.settings.get(key, ABSENT) for key in keys]
        alone = [] if finished else [str(run.path)]
        together.setdefault((*values, *alone), []).append(run)
    sign = 1.0 if better == "lower" else -1.0
    groups = sorted(
        (
            _group(title, metric, dict(zip(keys, values, strict=False)), found)
            for values, found in together.items()
        ),
        key=lambda g: (sign * g.result.mean if g.result else math.inf, g.label),
    )
    return Table(title, metric, better, keys, tuple(groups), finished)


def _group(title: str, metric: str, values: dict[str, str], runs: Sequence[Run]) -> Group:
    done = [run for run in runs if run.state == "DONE"]
    facts = pd.DataFrame([run.facts for run in done], dtype=float).mean().to_dict()
    result = spread([run.metrics[metric] for run in done if metric in run.metrics])
    return Group(title, metric, values, tuple(runs), result, facts)


def differing(of_runs: Sequence[dict[str, str]]) -> list[str]:
    """Keys in which the settings of runs differ, choices of groups first, without the seed.

    Where runs differ in the choice of a group, its keys count only if runs of one choice differ in
    them.
    """
    settings = pd.DataFrame(of_runs).fillna(ABSENT)
    found = settings.loc[:, settings.nunique() > 1].drop(columns="seed", errors="ignore")

    def counts(key: str) -> bool:
        group = key.partition(".")[0]
        if group == key or group not in found:
            return True
        return bool(found.groupby(group)[key].nunique().max() > 1)

    return sorted(filter(counts, found), key=lambda key: "." in key)


def _metric(runs: Sequence[Run]) -> str:
    """The metric by which runs are ordered: that of their table, or the first usual one."""
    names = {run.table for run in runs}
    if len(names) == 1 and (name := names.pop()) in tables.tables():
        return tables.load(name).metric
    had = [name for run in runs for name in run.metrics]
    usual = max(USUAL, key=had.count)
    return usual if usual in had or not had else had[0]


def _better(metric: str, runs: Sequence[Run]) -> str:
    """The better side of a metric: as the runs' tables say, or by the words of its name."""
    known = {run.table for run in runs} & {*tables.tables()}
    sides = {table.better for table in map(tables.load, known) if table.metric == metric}
    if len(sides) == 1:
        return sides.pop()
    return "lower" if LOWER & {*re.split(r"[^a-z]+", metric.lower())} else "higher"


def _check(by: Sequence[str], metric: str | None, runs: Sequence[Run]) -> None:
    """Raise if no run has a key or the metric."""
    known = {key for run in runs for key in run.settings}
    for key in by:
        if key not in known:
            same = sorted(name for name in known if name.rpartition(".")[2] == key)
            near = f"; did you mean '{same[0]}'?" if same else nearest(key, known)
            raise UserError(f"by={key}: no run has this key{near}")
    had = {name for run in runs for name in run.metrics}
    if metric is not None and metric not in had:
        raise UserError(
            f"metric={metric}: no run has it; they have"
            f" {', '.join(sorted(had)) or 'no metrics yet'}{nearest(metric, had)}"
        )
