"""Runs of `python -m benchmarks profile` by mixer and task: rates, scores of the seeds.

A record's `tags` hold its stage: runs of one seed at several rates choose the rate by validation
accuracy, and fresh seeds at it report test accuracy. A score is the accuracy above chance,
(accuracy − chance)/(1 − chance): 0 for a guess among the possible answers, 1 without an error.
"""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.variant import mixer_of

#: The metric, and the start of its parts (`test/accuracy_4x`).
METRIC = "test/accuracy"
CHANCE, MAJORITY = "val/chance_accuracy", "val/majority_accuracy"


@dataclass(frozen=True)
class Run:
    """One record.

    Args:
        mixer, task, seed, stage, rate: what was trained, at which learning rate; a mixer with
            options is `delta+conv=4`.
        record: contents of run.json.
        setting: everything of the configuration that runs of a task share, flat.
        limit: steps allowed.
        commit, processor: where it was trained.
    """

    mixer: str
    task: str
    seed: int
    stage: str
    rate: float
    record: dict[str, Any]
    setting: tuple[tuple[str, str], ...]
    limit: int
    commit: str
    processor: str

    @property
    def accuracy(self) -> float:
        return float(self.record["metrics"][METRIC])

    @property
    def solved(self) -> int | None:
        """Step at which validation accuracy reached the limit that ends a run; None if never."""
        return int(self.record["steps"]) if self.record["steps"] < self.limit else None


@dataclass(frozen=True)
class Result:
    """A mixer on a task: runs by seed at the chosen rate.

    Args:
        task: its name.
        rate: the chosen rate.
        rates: validation accuracy of the choosing seed by rate.
        runs: by seed.
    """

    task: str
    rate: float
    rates: dict[float, float]
    runs: dict[int, Run]

    @property
    def chance(self) -> float:
        return _mean(self.runs, CHANCE)

    @property
    def majority(self) -> float:
        return _mean(self.runs, MAJORITY)

    @property
    def accuracies(self) -> dict[int, float]:
        return {seed: run.accuracy for seed, run in self.runs.items()}

    @property
    def scores(self) -> dict[int, float]:
        """Accuracy above chance by seed."""
        return {
            seed: above(run.accuracy, run.record["metrics"][CHANCE])
            for seed, run in self.runs.items()
        }

    @property
    def groups(self) -> dict[str, float]:
        """Mean accuracy of each part of the test, `1x` or `4_pairs`, in the order of its size."""
        keys = {key for run in self.runs.values() for key in run.record["metrics"]}
        names = [key.removeprefix(f"{METRIC}_") for key in keys if key.startswith(f"{METRIC}_")]
        names.sort(key=lambda name: (int(re.match(r"\d*", name)[0] or 0), name))  # type: ignore[index]
        return {name: _mean(self.runs, f"{METRIC}_{name}") for name in names}

    @property
    def solved(self) -> list[int]:
        """Steps of the runs that were solved early."""
        return sorted(step for run in self.runs.values() if (step := run.solved) is not None)


@dataclass(frozen=True)
class Profile:
    """Results of a mixer by task, and the position its runs have."""

    mixer: str
    position: str
    results: dict[str, Result]
    hours: float

    @property
    def scores(self) -> dict[str, dict[int, float]]:
        """Score by task and seed."""
        return {task: result.scores for task, result in self.results.items()}


@dataclass(frozen=True)
class Profiles:
    """All profiles of a store.

    Args:
        by_mixer: those with a reporting run, by name; `delta+conv=4` is a variant of `delta`.
        tasks: those that most plain mixers have.
        left_out: why records of the store are in no page.
        commits, processors: of the runs.
    """

    by_mixer: dict[str, Profile]
    tasks: tuple[str, ...]
    left_out: tuple[str, ...]
    commits: tuple[str, ...]
    processors: tuple[str, ...]

    @property
    def plain(self) -> list[str]:
        """Mixers without options, each of which has a card."""
        return [name for name in self.by_mixer if mixer_of(name) == name]

    def variants(self, mixer: str) -> list[Profile]:
        """Those of a mixer with options."""
        return [p for n, p in self.by_mixer.items() if mixer_of(n) == mixer != n]

    @property
    def seeds(self) -> int:
        """Smallest number of reporting seeds of a mixer and task."""
        return min(len(r.runs) for p in self.by_mixer.values() for r in p.results.values())

    @property
    def hours(self) -> float:
        """Time that all runs took, also those that chose the rate."""
        return sum(profile.hours for profile in self.by_mixer.values())

    def complete(self) -> list[Profile]:
        """Profiles that have every task."""
        return [p for p in self.by_mixer.values() if set(self.tasks) <= p.results.keys()]


def above(accuracy: float, chance: float) -> float:
    """Share of the way from a guess to no error."""
    return (accuracy - chance) / (1 - chance)


def gather(runs: list[Run], left_out: Sequence[str] = ()) -> Profiles:
    """The profiles of these runs.

    Args:
        runs: of any mixers, tasks and stages.
        left_out: why others are not among them.
    """
    runs, others = _comparable(runs)
    by_mixer = {}
    for mixer in sorted({run.mixer for run in runs}):
        own = [run for run in runs if run.mixer == mixer]
        results = {t: found for t in sorted({r.task for r in own}) if (found := _result(own, t))}
        if results:
            position = str(own[0].record["choices"].get("position", "none"))
            hours = sum(float(run.record.get("wall_seconds", 0.0)) for run in own) / 3600
            by_mixer[mixer] = Profile(mixer, position, results, hours)
    plain = {mixer: p for mixer, p in by_mixer.items() if mixer_of(mixer) == mixer}
    alone = sorted(mixer for mixer in by_mixer if mixer_of(mixer) not in plain)
    by_mixer = {mixer: p for mixer, p in by_mixer.items() if mixer not in alone}
    others += [f"{m}: {mixer_of(m)} itself, which has the card, has no record" for m in alone]
    counts = Counter(task for p in plain.values() for task in p.results)
    tasks = tuple(sorted(task for task, n in counts.items() if 2 * n >= len(plain)))
    return Profiles(
        by_mixer,
        tasks,
        (*left_out, *others),
        tuple(sorted({run.commit for run in runs})),
        tuple(sorted({run.processor for run in runs})),
    )


def _comparable(runs: list[Run]) -> tuple[list[Run], list[str]]:
    """Of each task the runs of the setting that most mixers have, and why the others are left."""
    kept, left_out = [], []
    for task in sorted({run.task for run in runs}):
        own = [run for run in runs if run.task == task]
        mixers: dict[tuple[tuple[str, str], ...], set[str]] = {}
        for run in own:
            mixers.setdefault(run.setting, set()).add(run.mixer)
        most = max(mixers, key=lambda setting: (len(mixers[setting]), setting))
        kept += [run for run in own if run.setting == most]
        for setting in mixers.keys() - {most}:
            differing = sorted({key for key, _ in set(setting) ^ set(most)})
            names = ", ".join(sorted(mixers[setting]))
            left_out.append(f"{task} of {names}: other {', '.join(differing)} than most records")
    return kept, left_out


def _result(runs: list[Run], task: str) -> Result | None:
    """The reporting runs of a mixer at the rate that its choosing runs name."""
    own = [run for run in runs if run.task == task]
    choosing = [run for run in own if run.stage == "rate"]
    reporting = [run for run in own if run.stage == "report"]
    if not reporting:
        return None
    if choosing:
        rate = chosen(choosing).rate
    else:
        rate = Counter(run.rate for run in reporting).most_common(1)[0][0]
    at_rate = {run.seed: run for run in reporting if run.rate == rate}
    rates = {r.rate: float(r.record["metrics"]["val/accuracy"]) for r in choosing}
    return (
        Result(task, rate, dict(sorted(rates.items())), dict(sorted(at_rate.items())))
        if (at_rate)
        else None
    )


def chosen(runs: list[Run]) -> Run:
    """The run of the best rate: highest validation accuracy, then fewest steps, lowest rate."""
    return min(
        runs, key=lambda r: (-r.record["metrics"]["val/accuracy"], r.record["steps"], r.rate)
    )


def _mean(runs: Mapping[int, Run], key: str) -> float:
    """Mean of a metric over the runs that have it; nan without one."""
    values = [run.record["metrics"][key] for run in runs.values() if key in run.record["metrics"]]
    return statistics.fmean(values) if values else float("nan")
