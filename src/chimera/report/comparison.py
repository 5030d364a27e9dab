"""Read any runs and group them by the settings in which they differ, the best group first.

Runs that differ in their seed only are one group. Only finished runs of one task, on the same data,
for as many steps of as many tokens, are averaged or ranked together: there is a table for each such
set, and one that lists the runs that are not finished. Everything in a run's directory may be a
stranger's: it is read as data, and a run that cannot be read hides no other.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from chimera.config import tables
from chimera.dotted import flatten
from chimera.errors import UserError, nearest, one_line
from chimera.report import formatting
from chimera.report.stats import Spread, finite, spread
from chimera.rundir.directory import RunDir
from chimera.rundir.identity import Text, apart, identity_settings, text_of
from chimera.rundir.records import LIST, Record, records
from chimera.rundir.safe_io import check_links
from chimera.rundir.steps import read as read_steps

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
#: Settings of `SHARED_GROUPS` that runs of one table need not share.
FREE = ("data.batch_size", "tokenizer.num_threads")
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

    @cached_property
    def log(self) -> Array:
        """Step, mean loss since the last point, seconds without pauses [n 3] of the training."""
        try:
            rows = read_steps(self.path / "steps.csv")
        except UserError:
            return np.empty((0, 3))
        return thinned(rows[["global_step", "loss", "seconds"]].to_numpy())

    def curve(self, axis: str) -> Array:
        """Place on one of `AXES` and loss [n 2]; no points if tokens or FLOPs are not known."""
        steps, losses, seconds = self.log.T
        tokens = steps * (self.tokens or math.nan)
        flops = tokens * (self.flops or math.nan)
        places = {"steps": steps, "tokens": tokens, "seconds": seconds, "FLOPs": flops}[axis]
        return np.stack([places, losses], 1)[np.isfinite(places)]


@dataclass(frozen=True)
class Group:
    """Finished runs that agree in the compared keys, or one run that is not finished.

    Args:
        values: of the compared keys, as text.
        runs: of it, by seed.
        result: the metric of its runs; None without one.
        facts: mean of each fact of its runs.
    """

    values: dict[str, str]
    runs: tuple[Run, ...]
    result: Spread | None
    facts: dict[str, float]

    @property
    def label(self) -> str:
        """The values, with the names of their keys."""
        return " ".join(f"{key}={value}" for key, value in self.values.items()) or "all runs"

    @property
    def states(self) -> str:
        """How many runs it has, all finished; or the state of its one run that is not."""
        state = self.runs[0].state
        return str(len(self.runs)) if state == "DONE" else state.lower()

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
        shared: settings that its runs share and those of other tables do not, as text.
        metric: by which the groups are ordered.
        better: lower or higher.
        keys: in which the groups differ.
        groups: of runs; those without a result come last.
        finished: whether its runs are.
    """

    shared: dict[str, str]
    metric: str
    better: str
    keys: tuple[str, ...]
    groups: tuple[Group, ...]
    finished: bool

    @property
    def title(self) -> str:
        """What tells it from other tables; empty if it is the only one."""
        named = ", ".join(f"{key}={value}" for key, value in self.shared.items())
        return named if self.finished else "not finished"

    @property
    def order(self) -> str:
        """Its runs and their order, in words."""
        count = sum(len(group.runs) for group in self.groups)
        runs = f"{count} run{'s' * (count != 1)}"
        if not self.finished:
            return f"{runs}, {self.title}"
        return f"{runs}, {self.better} {self.metric} first" + f": {self.title}" * bool(self.title)


@dataclass(frozen=True)
class Comparison:
    """Tables of comparable runs.

    Args:
        keys: in which the runs differ, or by which they were grouped.
        tables: those with most runs first; last the one of runs that are not finished.
        apart: settings by which the tables differ.
        broken: what is wrong with directories that could not be read, by name.
    """

    keys: tuple[str, ...]
    tables: tuple[Table, ...]
    apart: tuple[str, ...]
    broken: dict[str, str]

    @property
    def groups(self) -> list[Group]:
        """All groups, in the order of the tables."""
        return [group for table in self.tables for group in table.groups]

    @property
    def runs(self) -> list[Run]:
        """All runs, in the order of their groups."""
        return [run for group in self.groups for run in group.runs]

    @property
    def why_apart(self) -> str:
        """A sentence if there are several tables; else empty."""
        if len(self.tables) < 2:
            return ""
        whys = [f"differ in {', '.join(self.apart)}"] if self.apart else []
        whys += ["are not finished"] * (not self.tables[-1].finished)
        return (
            f"{len(self.tables)} tables: runs that {' or '.join(whys)} are not averaged or ranked"
            " with the others."
        )

    @property
    def other_text(self) -> str:
        """A sentence if runs of the same settings have different training text; else empty."""
        return apart(run.text for run in self.runs)


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
        inside = [path for path in [place, *sorted(place.iterdir())] if is_run(path)]
        kept = records(place) if (place / LIST).is_file() else []
        if not inside and not kept:
            raise UserError(f"{place} holds no run; name runs, or a folder that holds them")
        found |= {path: path for path in ([place] if place in inside else inside)}
        found |= {record.path: record for record in kept}
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
            runs.append(read(each) if isinstance(each, Path) else of_record(each))
        except UserError as error:
            broken[path_of(each)] = one_line(error)
        except (
            LookupError,
            TypeError,
            ValueError,
            AttributeError,
            ArithmeticError,
            OSError,
        ) as error:
            broken[path_of(each)] = one_line(f"its files are not those of a run: {error!r}")
    return runs, broken


def read(path: Path) -> Run:
    """Read a run.

    Raises:
        UserError: a file of it cannot be read, is a link out of it, or nests too deep.
        KeyError, TypeError, ValueError, AttributeError, OSError: a file holds something else.
    """
    directory = RunDir(path)
    check_links(path)
    state = one_line(directory.status().get("state"))[:40]
    state = "STOPPED" if state == "RUNNING" and not directory.is_running() else state
    return _run(path, state, directory.config(), directory.record())


def of_record(record: Record) -> Run:
    """The run of a record, with its curve."""
    run = _run(record.path, "DONE", record.config, record.result)
    columns = [record.steps.get(key, []) for key in ("global_step", "loss", "seconds")]
    rows = np.array(list(zip(*columns, strict=True)), float).reshape(-1, 3)
    run.__dict__["log"] = thinned(rows)  # where `cached_property` looks first
    return run


def _run(path: Path, state: str, config: dict[str, Any], record: dict[str, Any]) -> Run:
    table = config.get("table")
    data = config["data"]
    trainer = config["trainer"]
    length = data.get("seq_len") or config["model"].get("max_len")
    factors = (length, data.get("batch_size"), trainer.get("accumulate_grad_batches") or 1)
    tokens = None
    if all(isinstance(factor, int) for factor in factors):
        tokens = finite(math.prod(factors))
    facts = flatten(record)
    return Run(
        path=path,
        state=state,
        settings=_settings(config),
        metrics=_numbers(record.get("metrics") or {}),
        facts=_numbers({name: facts.get(key) for name, (key, *_) in FACTS.items()}),
        seed=str(config.get("seed")),
        table=str(table.get("name")) if isinstance(table, dict) else "",
        tokens=tokens,
        flops=finite((record.get("flops") or {}).get("training")),
        text=text_of(record),
    )


def thinned(log: Array, points: int = POINTS) -> Array:
    """Step, mean loss since the last point, seconds since the first step [n 3] of a step log.

    Pauses between two processes of a run are left out of the seconds, and losses that are not
    finite.

    Args:
        log: step, loss and time of each row [n 3].
        points: about so many are kept.
    """
    steps, losses, times = log[np.isfinite(log[:, [0, 2]]).all(1)].T
    if not len(steps):
        return np.empty((0, 3))
    gaps = np.diff(times, prepend=times[0]).clip(min=0.0)
    seconds = gaps.clip(max=PAUSE * np.median(gaps[1:] if len(gaps) > 1 else gaps) + 1.0).cumsum()
    size = math.ceil(len(steps) / points)
    starts = np.arange(0, len(steps), size)
    ends = (starts + size - 1).clip(max=len(steps) - 1)
    finite = np.isfinite(losses)
    counts = np.add.reduceat(finite.astype(int), starts)
    sums = np.add.reduceat(np.where(finite, losses, 0.0), starts)
    kept = counts > 0
    return np.stack([steps[ends], sums / counts.clip(min=1), seconds[ends]], 1)[kept]


def _settings(config: dict[str, Any]) -> dict[str, str]:
    """Flat settings on which the numbers of a run depend, as text, and its choices by group."""
    choices = {k: v for k, v in config["choices"].items() if k not in NOT_SHOWN}
    settings = flatten(identity_settings(config))
    return {one_line(key)[:100]: _shown(value) for key, value in {**settings, **choices}.items()}


def _shown(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return str(value).lower().replace("none", "null")
    return one_line(value)[:200]


def _numbers(values: dict[str, Any]) -> dict[str, float]:
    """The finite numbers of a mapping."""
    found = {one_line(key)[:100]: finite(value) for key, value in values.items()}
    return {key: value for key, value in found.items() if value is not None}


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
        runs: one or more.
        by: keys to group by; runs that differ in others are averaged. Empty: all that differ.
        metric: of the order; None: that of the runs' table, or the first usual one that they have.
        better: lower or higher; None: by the metric's table or name.
        broken: for the result.

    Raises:
        UserError: a key or metric that no run has.
    """
    by = _checked(by, runs)
    if metric is not None:
        _check_metric(metric, runs)
    sets = _comparable([run for run in runs if run.state == "DONE"])
    sets.sort(key=lambda one: -len(one[1]))
    differ = differing([shared for shared, _ in sets])
    found = [
        _table({key: shared.get(key, ABSENT) for key in differ}, members, by, metric, better)
        for shared, members in sets
    ]
    if others := [run for run in runs if run.state != "DONE"]:
        found.append(_table({}, others, by, metric, better))
    keys = tuple(by or differing([run.settings for run in runs]))
    return Comparison(keys, tuple(found), tuple(differ), broken or {})


def _comparable(runs: Sequence[Run]) -> list[tuple[dict[str, str], list[Run]]]:
    """Sets of runs that agree in task, data, steps, tokens and text, with what they agree in."""
    found: dict[tuple[tuple[str, str], ...], list[Run]] = {}
    for run in runs:
        shared = {key: value for key, value in run.settings.items() if _is_shared(key)}
        shared[TOKENS] = ABSENT if run.tokens is None else f"{run.tokens:,.0f}"
        found.setdefault(tuple(sorted(shared.items())), []).append(run)
    sets = []
    for key, members in found.items():
        by_text: dict[str, list[Run]] = {}
        differs = bool(apart(run.text for run in members))
        for run in members:
            text = run.text.tokens[:8] if differs and run.text else ABSENT
            by_text.setdefault(text, []).append(run)
        sets += [(dict(key) | {TEXT: text}, each) for text, each in by_text.items()]
    return sets


def _is_shared(key: str) -> bool:
    return key not in FREE and (key in SHARED or key.partition(".")[0] in SHARED_GROUPS)


def _table(
    shared: dict[str, str], runs: Sequence[Run], by: Sequence[str], metric: str | None,
    better: str | None,
) -> Table:  # fmt: skip
    """Group runs that may be compared, all of them finished or none, and order the groups."""
    finished = runs[0].state == "DONE"
    metric = metric or _metric(runs)
    better = better or _better(metric, runs)
    keys = tuple(by or differing([run.settings for run in runs]))
    if not finished and len({run.seed for run in runs}) > 1:
        keys = (*keys, "seed")
    together: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        values = tuple(run.settings.get(key, ABSENT) for key in keys)
        alone = () if finished else (str(run.path),)
        together.setdefault((*values, *alone), []).append(run)
    groups = [
        _group(dict(zip(keys, values, strict=False)), found, metric)
        for values, found in together.items()
    ]
    sign = 1.0 if better == "lower" else -1.0
    groups.sort(key=lambda g: (sign * g.result.mean if g.result else math.inf, g.label))
    return Table(shared, metric, better, keys, tuple(groups), finished)


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


def _group(values: dict[str, str], runs: Sequence[Run], metric: str) -> Group:
    done = [run for run in runs if run.state == "DONE"]
    facts = {name: spread([r.facts[name] for r in done if name in r.facts]) for name in FACTS}
    return Group(
        values,
        tuple(sorted(runs, key=lambda run: (len(run.seed), run.seed, run.path.name))),
        spread([run.metrics[metric] for run in done if metric in run.metrics]),
        {name: fact.mean for name, fact in facts.items() if fact},
    )


def _check_metric(metric: str, runs: Sequence[Run]) -> None:
    had = {name for run in runs for name in run.metrics}
    if metric not in had:
        raise UserError(
            f"metric={metric}: no run has it; they have"
            f" {', '.join(sorted(had)) or 'no metrics yet'}{nearest(metric, had)}"
        )


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


def _checked(by: Sequence[str], runs: Sequence[Run]) -> list[str]:
    known = {key for run in runs for key in run.settings}
    for key in by:
        if key not in known:
            same = sorted(name for name in known if name.rpartition(".")[2] == key)
            near = f"; did you mean '{same[0]}'?" if same else nearest(key, known)
            raise UserError(f"by={key}: no run has this key{near}")
    return list(dict.fromkeys(by))
