"""Find the settings in which runs differ, and put runs together that differ in their seed only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from chimera.config import tables
from chimera.errors import UserError, nearest
from chimera.report.compare.collect import FACTS, Run
from chimera.report.stats import Spread, spread
from chimera.rundir.text import apart

#: Metrics by which runs are ordered if the command line names none, and their better side.
USUAL = ("val/perplexity", "val/loss", "val/accuracy", "test/perplexity", "test/loss")
#: Words in the names of metrics of which lower values are better.
LOWER = ("loss", "perplexity", "error", "latency", "seconds")
ABSENT = "–"


@dataclass(frozen=True)
class Group:
    """Runs that agree in the compared keys.

    Args:
        values: of the compared keys, as text.
        runs: of it.
        result: the metric of its finished runs; None without one.
        facts: mean of each fact of its finished runs.
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
        """How many of its runs are done, where not all are, and what the others are."""
        done = sum(run.state == "DONE" for run in self.runs)
        if done == len(self.runs):
            return str(done)
        others = sorted({run.state.lower() for run in self.runs if run.state != "DONE"})
        return f"{done} of {len(self.runs)} ({', '.join(others)})"


@dataclass(frozen=True)
class Comparison:
    """Groups of runs, the best first.

    Args:
        metric: by which they are ordered.
        better: lower or higher.
        keys: in which the groups differ.
        groups: of runs; those without a result come last.
        broken: what is wrong with directories that could not be read, by name.
    """

    metric: str
    better: str
    keys: tuple[str, ...]
    groups: tuple[Group, ...]
    broken: dict[str, str]

    @property
    def other_text(self) -> str:
        """A sentence if runs of the same settings have different training text; else empty."""
        return apart(run.text for run in self.runs)

    @property
    def runs(self) -> list[Run]:
        """All runs, in the order of their groups."""
        return [run for group in self.groups for run in group.runs]


def compare(
    runs: Sequence[Run],
    *,
    by: Sequence[str] = (),
    metric: str | None = None,
    better: str | None = None,
    broken: dict[str, str] | None = None,
) -> Comparison:
    """Group runs and order the groups.

    Args:
        runs: one or more.
        by: keys to group by; runs that differ in others are averaged. Empty: all that differ.
        metric: of the order; None: that of the runs' table, or the first usual one that they have.
        better: lower or higher; None: by the metric's table or name.
        broken: for the result.

    Raises:
        UserError: a key or metric that no run has.
    """
    if metric is None:
        metric, of_table = metric_of(runs)
        better = better or of_table
    elif not any(metric in run.metrics for run in runs):
        had = sorted({name for run in runs for name in run.metrics})
        raise UserError(
            f"metric={metric}: no run has it; they have {', '.join(had) or 'no metrics yet'}"
            f"{nearest(metric, had)}"
        )
    better = better or ("lower" if any(word in metric for word in LOWER) else "higher")
    keys = tuple(_checked(by, runs) or differing(runs))
    together: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        together.setdefault(tuple(run.settings.get(k, ABSENT) for k in keys), []).append(run)
    groups = [
        group_of(dict(zip(keys, values, strict=True)), found, metric)
        for values, found in together.items()
    ]
    sign = 1.0 if better == "lower" else -1.0
    groups.sort(key=lambda group: _place(group, sign))
    return Comparison(metric, better, keys, tuple(groups), broken or {})


def differing(runs: Sequence[Run]) -> list[str]:
    """Keys in which runs differ, without the seed.

    Where runs differ in the choice of a group, its keys count only if runs of one choice differ in
    them.
    """
    values: dict[str, set[str]] = {}
    for key in {key: None for run in runs for key in run.settings}:
        values[key] = {run.settings.get(key, ABSENT) for run in runs}
    found = [key for key in values if len(values[key]) > 1 and key != "seed"]
    choices = {key for key in found if "." not in key}
    kept = [key for key in found if not _implied(key, choices, runs)]
    return sorted(kept, key=lambda key: "." in key)  # choices first


def _implied(key: str, choices: set[str], runs: Sequence[Run]) -> bool:
    """Whether a key differs only because runs chose different options of its group."""
    group, dot, _ = key.partition(".")
    if not dot or group not in choices:
        return False
    of_choice: dict[str, set[str]] = {}
    for run in runs:
        chosen = run.settings.get(group, ABSENT)
        of_choice.setdefault(chosen, set()).add(run.settings.get(key, ABSENT))
    return all(len(values) == 1 for values in of_choice.values())


def group_of(values: dict[str, str], runs: Sequence[Run], metric: str) -> Group:
    """A group with the result and the facts of its finished runs."""
    done = [run for run in runs if run.state == "DONE"]
    facts = {}
    for name in FACTS:
        known = [run.facts[name] for run in done if name in run.facts]
        if known:
            facts[name] = sum(known) / len(known)
    result = spread([run.metrics[metric] for run in done if metric in run.metrics])
    ordered = sorted(runs, key=lambda run: (len(run.seed), run.seed, run.path.name))
    return Group(values, tuple(ordered), result, facts)


def metric_of(runs: Sequence[Run]) -> tuple[str, str | None]:
    """The metric by which runs are ordered, and its better side if a table says so."""
    names = {run.table for run in runs}
    if len(names) == 1 and (name := names.pop()) in tables.tables():
        table = tables.load(name)
        return table.metric, table.better
    counts = [sum(name in run.metrics for run in runs) for name in USUAL]
    if max(counts):
        return USUAL[counts.index(max(counts))], None
    had = [name for run in runs for name in run.metrics]
    return (had[0] if had else USUAL[0]), None


def _checked(by: Sequence[str], runs: Sequence[Run]) -> list[str]:
    known = {key for run in runs for key in run.settings}
    for key in by:
        if key not in known:
            same = sorted(name for name in known if name.rpartition(".")[2] == key)
            near = f"; did you mean '{same[0]}'?" if same else nearest(key, known)
            raise UserError(f"by={key}: no run has this key{near}")
    return list(dict.fromkeys(by))


def _place(group: Group, sign: float) -> tuple[bool, float, str]:
    if group.result is None:
        return True, 0.0, group.label
    return False, sign * group.result.mean, group.label
