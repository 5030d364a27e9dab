"""Scores that others print, beside ours: rank correlation, and pairs whose order differs."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations, permutations
from pathlib import Path

import yaml

from benchmarks.card.records import Profiles
from chimera.report.bootstrap import Estimate, rank_correlation
from chimera.report.stats import Difference, corrected, paired

FILE = Path(__file__).with_suffix(".yaml")
#: Name of the column of means over all tasks of a source.
MEAN = "mean"
#: Difference of published scores below which they rank nothing.
TIE = 0.01
#: Most rows of which all orders are counted.
ALL_ORDERS = 8


@dataclass(frozen=True)
class Source:
    """A table of published scores.

    Args:
        title, source, note: for the page.
        scores: by task, `mean` among them, and mixer.
        variants: what its mixers were, where they had options: `delta` was `delta+conv=4`.
    """

    title: str
    source: str
    note: str
    scores: dict[str, dict[str, float]]
    variants: dict[str, str] = field(default_factory=dict)

    @property
    def mixers(self) -> list[str]:
        return list(self.scores[MEAN])


@dataclass(frozen=True)
class Rank:
    """Spearman's correlation of our scores with a source's on one task.

    Args:
        task: or `mean`.
        mixers: that both have.
        estimate: with an interval over our seeds.
        chance: share of all orders of the mixers with a correlation at least as high; None for
            too many mixers to count.
    """

    task: str
    mixers: list[str]
    estimate: Estimate
    chance: float | None


@dataclass(frozen=True)
class Disagreement:
    """Two mixers, the first better in the source by `gap`; `ours` is negative: worse here."""

    task: str
    first: str
    second: str
    gap: float
    ours: Difference


def sources(file: Path = FILE) -> list[Source]:
    """All tables of published scores."""
    found = []
    for node in yaml.safe_load(file.read_text(encoding="utf-8")).values():
        columns = {
            task: {mixer: row[i] for mixer, row in node["scores"].items()}
            for i, task in enumerate(node["tasks"])
        }
        columns[MEAN] = {m: statistics.fmean(row) for m, row in node["scores"].items()}
        variants = node.get("variants", {})
        found.append(Source(node["title"], node["source"], node["note"], columns, variants))
    return found


def matched(profiles: Profiles, source: Source) -> tuple[Source, dict[str, list[str]]]:
    """A source whose mixers have the names of ours with the options that it used.

    Returns:
        The source, and by mixer the tasks for which that variant has no record, so that the plain
        mixer has its place.
    """
    scores: dict[str, dict[str, float]] = {}
    instead: dict[str, list[str]] = {}
    for task, row in source.scores.items():
        here, scores[task] = ours(profiles, task), {}
        for mixer, score in row.items():
            used = source.variants.get(mixer, mixer)
            if used not in here and mixer in here:
                instead.setdefault(mixer, []).append(task)
            scores[task][used if used in here else mixer] = score
    return replace(source, scores=scores), instead


def ours(profiles: Profiles, task: str) -> dict[str, dict[int, float]]:
    """Our scores by mixer and seed; of `mean` the mean over all tasks, of complete profiles."""
    if task != MEAN:
        return {m: p.scores[task] for m, p in profiles.by_mixer.items() if task in p.scores}
    found = {}
    for profile in profiles.complete():
        seeds = set.intersection(*(set(profile.scores[t]) for t in profiles.tasks))
        if seeds:
            found[profile.mixer] = {
                seed: statistics.fmean(profile.scores[t][seed] for t in profiles.tasks)
                for seed in sorted(seeds)
            }
    return found


def ranks(profiles: Profiles, source: Source) -> list[Rank]:
    """Correlations on each task that both have, where they have three mixers in common."""
    found = []
    for task, scores in source.scores.items():
        here = ours(profiles, task)
        mixers = sorted(here.keys() & scores.keys())
        if len(mixers) >= 3:
            estimate = rank_correlation(here, scores)
            means = {mixer: statistics.fmean(here[mixer].values()) for mixer in mixers}
            found.append(Rank(task, mixers, estimate, by_chance(means, scores)))
    return found


def by_chance(ours: Mapping[str, float], theirs: Mapping[str, float]) -> float | None:
    """Share of the orders of our scores whose correlation is at least as high; all are counted."""
    from scipy.stats import spearmanr

    names = sorted(ours.keys() & theirs.keys())
    if len(names) > ALL_ORDERS:
        return None
    there = [theirs[name] for name in names]
    values = [ours[name] for name in names]
    if len(set(values)) == 1 or len(set(there)) == 1:
        return 1.0
    reached = spearmanr(values, there).statistic - 1e-9
    orders = list(permutations(values))
    hits = sum(correlation >= reached for correlation in _all(orders, there))
    return hits / len(orders)


def _all(orders: list[tuple[float, ...]], there: list[float]) -> list[float]:
    """Spearman's correlation of each order with the same numbers."""
    import numpy as np
    from scipy.stats import rankdata

    x, y = rankdata(np.array(orders), axis=1), rankdata(there)
    x, y = x - x.mean(1, keepdims=True), y - y.mean()
    correlations: list[float] = (x @ y / np.sqrt((x**2).sum(1) * (y**2).sum())).tolist()
    return correlations


def disagreements(profiles: Profiles, source: Source) -> tuple[int, list[Disagreement]]:
    """Number of pairs that the source ranks on our tasks, and those that are otherwise here.

    A pair is otherwise if our paired test over seeds rejects equal scores in the other direction,
    corrected by Holm's method for all pairs of the task.
    """
    number, found = 0, []
    for task in profiles.tasks:
        here, there = ours(profiles, task), source.scores.get(task, {})
        pairs = []
        for a, b in combinations(sorted(here.keys() & there.keys()), 2):
            first, second = (a, b) if there[a] >= there[b] else (b, a)
            gap = there[first] - there[second]
            difference = paired(here[first], here[second])
            if gap >= TIE and difference is not None:
                pairs.append((first, second, gap, difference))
        tested = corrected([difference for *_, difference in pairs])
        number += len(pairs)
        for (first, second, gap, _), ours_ in zip(pairs, tested, strict=True):
            if ours_ is not None and ours_.significant and ours_.mean < 0:
                found.append(Disagreement(task, first, second, gap, ours_))
    return number, sorted(found, key=lambda one: one.ours.mean)
