"""Scores of mixers on small tasks, from the kept runs of `ours/small_tasks`, and what others print.

Per mixer and task, seed 0 chooses the learning rate by validation accuracy (then by fewest steps,
then the lowest rate), among those at which other seeds were run; these report test accuracy at it.
A score is the accuracy above a guess, (accuracy − chance)/(1 − chance): 0 for a guess among the
possible answers, 1 for no error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from itertools import combinations, permutations
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd
import yaml
from bootstrap import iqm, spearman
from evidence import Seeds, between, less, runs

from chimera.paths import CONF
from chimera.report.stats import Difference, corrected, paired

#: Whose runs: the cell of effects with the parts of a profile is a profile.
TABLES = ("ours/small_tasks", "ours/effects")
#: Steps of a run, at most.
STEPS = 800
#: Difference of published scores below which they rank nothing.
TIE = 0.01
#: What has a rate of its own.
CASE = ["mixer", "task"]
#: Scores by task and seed.
Scores = dict[str, dict[int, float]]


def kept(**chosen: object) -> pd.DataFrame:
    """All runs of the tasks, with `task`, `rate` and `score`.

    Args:
        chosen: values of columns (`evidence.runs`).
    """
    found = runs(*TABLES, choices__preset="profile", **chosen)
    chance = found["val/chance_accuracy"]
    return found.assign(
        task=found["choices.data"].str.removeprefix("mad/"),
        rate=found["optim.lr"].astype(float),
        score=(found["test/accuracy"] - chance) / (1 - chance),
    )


def chosen(found: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """The run of seed 0 that chose the rate of each setting, with all its columns.

    Args:
        found: runs of `kept`.
        by: columns that name a setting; each chooses its own rate.
    """
    choosing = found[(found["seed"] == 0) & (found["trainer.max_steps"] == STEPS)]
    choosing = choosing.sort_values(
        ["val/accuracy", "steps", "rate"], ascending=[False, True, True]
    )
    return choosing.drop_duplicates(by)


def at_best_rate(found: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """The reporting runs at the rate that seed 0 chose."""
    best = chosen(found, by)[[*by, "rate"]]
    return found[found["seed"] != 0].merge(best, on=[*by, "rate"]).sort_values([*by, "seed"])


def by_mixer(*, changed: bool = False) -> pd.DataFrame:
    """All runs of the mixers; `mixer` has their options, as in `delta+conv=4`.

    Args:
        changed: those with another task or size, which `change` names; else those without.
    """
    found = kept(choices__norm="rmsnorm", choices__quant="none", choices__ffn="swiglu")
    every = found.to_dict("records")
    found = found.assign(mixer=[_label(run) for run in every], change=[_change(r) for r in every])
    return found[(found["change"] != "") == changed]


def at_highest(found: pd.DataFrame) -> pd.DataFrame:
    """Cases of a mixer and a task by task: how many, at their highest rate, of them solved."""
    best = chosen(found, CASE)
    highest = found.groupby(CASE)["rate"].max()
    highest = best["rate"] == [
        highest[case] for case in zip(best["mixer"], best["task"], strict=True)
    ]
    solved = highest & (best["steps"] < STEPS)
    counts = {"cases": best["rate"] > 0, "at the highest rate": highest, "of these solved": solved}
    return pd.DataFrame({name: of.groupby(best["task"]).sum() for name, of in counts.items()})


def reported(found: pd.DataFrame, steps: int = STEPS) -> pd.DataFrame:
    """Those runs at whose rate four other seeds than the choosing one took so many steps.

    Where no rate has four, those at the rates with the most.
    """
    others = found[(found["seed"] != 0) & (found["trainer.max_steps"] == steps)]
    seeds = others.groupby([*CASE, "rate"])["seed"].nunique().rename("seeds").reset_index()
    enough = seeds.groupby(CASE)["seeds"].transform("max").clip(upper=4)
    return found.merge(seeds.loc[seeds["seeds"] >= enough, [*CASE, "rate"]])


def waiting(found: pd.DataFrame) -> list[str]:
    """Cases whose best rate on seed 0 no other seed was run at; a lower one reports."""
    best, known = (chosen(part, CASE).set_index(CASE)["rate"] for part in (found, reported(found)))
    return [
        f"`{mixer}` on {task}" for (mixer, task), rate in best.items() if rate != known[mixer, task]
    ]


def moved(found: pd.DataFrame, limit: float = 0.01) -> list[dict[str, str]]:
    """Cases that chose a rate above a limit: score and rank without such rates, and with them."""
    found = reported(found)
    before, now = (
        scores(at_best_rate(part, CASE)) for part in (found[found["rate"] <= limit], found)
    )
    best = chosen(found, CASE)
    lines = []
    for one in best[best["rate"] > limit].sort_values(["task", "mixer"]).itertuples():
        line = {"task": one.task, "mixer": f"`{one.mixer}`", "rate": f"{one.rate:g}"}
        for name, by in (("before", before), ("now", now)):
            means = {mixer: mean(of[one.task]) for mixer, of in by.items() if one.task in of}
            rank = 1 + sum(value > means[one.mixer] for value in means.values())
            line |= {f"score {name}": f"{means[one.mixer]:.2f}", f"rank {name}": str(rank)}
        lines.append(line)
    return lines


@cache
def profiles(steps: int = STEPS) -> pd.DataFrame:
    """The reporting runs of all mixers; `mixer` has its options, as in `delta+conv=4`.

    Args:
        steps: of the schedule.
    """
    found = at_best_rate(reported(by_mixer(), steps), CASE)
    return found[found["trainer.max_steps"] == steps]


def _label(run: dict[str, Any]) -> str:
    """The mixer of a run, with the options that differ from its own."""
    name = str(run["choices.mixer"])
    own = yaml.safe_load((CONF / "mixer" / f"{name}.yaml").read_text(encoding="utf-8"))
    given = {key: run.get(f"mixer.{key}") for key in sorted(own) if not key.startswith("_")}
    differing = [
        f"+{key}={value:g}" for key, value in given.items() if pd.notna(value) and value != own[key]
    ]
    return name + "".join(differing)


@cache
def _usual(task: str) -> dict[str, float]:
    """Numbers of a task's own file and of the profile."""
    own = yaml.safe_load((CONF / "data" / "mad" / f"{task}.yaml").read_text(encoding="utf-8"))
    profile = yaml.safe_load((CONF / "preset" / "profile.yaml").read_text(encoding="utf-8"))
    every = {f"data.{k}": v for k, v in own.items()}
    every |= {f"model.{k}": v for k, v in profile["model"].items()}
    return {key: value for key, value in every.items() if type(value) in (int, float)}


def _change(run: dict[str, Any]) -> str:
    """Words of a run's task and size that differ from the usual ones."""
    usual = _usual(str(run["task"]))
    return " ".join(f"{key}={run[key]:g}" for key in usual if run[key] != usual[key])


def causes(mixers: Sequence[str], task: str = "fuzzy_recall") -> list[dict[str, str]]:
    """Scores of these mixers at their own rates, with more steps and with one change at a time."""
    every = pd.concat([by_mixer(), by_mixer(changed=True)])
    every = every[every["task"] == task]
    rates = chosen(reported(by_mixer()), CASE).set_index(CASE)["rate"]
    own = every["mixer"].map({mixer: rates[mixer, task] for mixer in mixers})
    every = every[(every["seed"] != 0) & (every["rate"] == own)]
    lines = []
    for (change, steps), part in every.groupby(["change", "trainer.max_steps"]):
        line = {"change": change or "none", "steps": str(steps)}
        for mixer in mixers:
            values = part.loc[part["mixer"] == mixer, "score"]
            seeds = f" ({len(values)} seeds)" * (len(values) not in (0, 4))
            line[f"`{mixer}`"] = f"{values.mean():.2f}{seeds}" if len(values) else "–"
        lines.append(line)
    return lines


def scores(found: pd.DataFrame) -> dict[str, Scores]:
    """Scores by mixer, task and seed."""
    return {
        str(mixer): {
            str(task): dict(zip(one["seed"], one["score"], strict=True))
            for task, one in part.groupby("task")
        }
        for mixer, part in found.groupby("mixer")
    }


def mean(values: Seeds) -> float:
    """Mean over seeds."""
    return fmean(values.values())


def as_good(by_mixer: dict[str, Scores], task: str) -> list[str]:
    """Mixers whose score on a task is not shown to be lower than the best one's, best first."""
    ranked = sorted(by_mixer, key=lambda mixer: -mean(by_mixer[mixer][task]))
    gaps = less({mixer: by_mixer[mixer][task] for mixer in ranked}, ranked[0])
    return [ranked[0], *(m for m, gap in gaps.items() if gap is None or not gap.significant)]


def recommendations(by_mixer: dict[str, Scores], state: dict[str, float]) -> str:
    """What to take, as a Markdown list: over all tasks, then for each task that a mixer learns.

    Args:
        by_mixer: scores.
        state: bytes of a decoding state after 1,024 tokens; a mixer without an entry is not small.
    """
    whole = {mixer: iqm(of) for mixer, of in by_mixer.items()}
    ranked = sorted(whole, key=lambda mixer: -whole[mixer].value)
    first, base = ranked[0], whole["attention"].value
    fixed = next(mixer for mixer in ranked if state.get(mixer, math.inf) < state["attention"] / 4)
    told = [
        f"- **In general** `{first}`, {between(*whole[first])} over all tasks, where `attention`"
        f" has {base:.2f}; with a small state `{fixed}`, {between(*whole[fixed])}."
    ]
    for task in sorted(by_mixer[first]):
        best, *others = as_good(by_mixer, task)
        score = mean(by_mixer[best][task])
        if score < 0.5:
            told.append(f"- **{task}**: none learns it in these steps (`{best}` {score:.2f}).")
            continue
        near = [m for m in (best, *others) if m in state and mean(by_mixer[m][task]) > score - 0.1]
        smallest = min(near, key=state.__getitem__, default=best)
        more = f"; with a smaller state `{smallest}` {mean(by_mixer[smallest][task]):.2f}"
        told.append(f"- **{task}**: `{best}` {score:.2f}{more * (smallest != best)}.")
    return "\n".join(told) + "\n"


@cache
def published() -> dict[str, dict[str, Any]]:
    """Scores that others print (published.yaml): by source, with `by_task`: task, mixer, score.

    Mixers that had options there have the name of our variant with them.
    """
    sources: dict[str, dict[str, Any]] = yaml.safe_load(
        Path(__file__).with_name("published.yaml").read_text(encoding="utf-8")
    )
    for source in sources.values():
        names = source.get("variants", {})
        rows = {names.get(mixer, mixer): row for mixer, row in source["scores"].items()}
        source["by_task"] = {
            task: {mixer: row[i] for mixer, row in rows.items()}
            for i, task in enumerate(source["tasks"])
        }
        source["by_task"]["mean of all tasks"] = {mixer: fmean(row) for mixer, row in rows.items()}
    return sources


def ours(by_mixer: dict[str, Scores], task: str) -> dict[str, dict[int, float]]:
    """Scores of a task by mixer and seed; of a task that we have not, the mean over all of ours."""
    if all(task in scores for scores in by_mixer.values()):
        return {mixer: scores[task] for mixer, scores in by_mixer.items()}
    return {
        mixer: {
            s: fmean(values[s] for values in scores.values()) for s in next(iter(scores.values()))
        }
        for mixer, scores in by_mixer.items()
    }


def orders_as_high(here: dict[str, float], there: dict[str, float]) -> float:
    """Share of all orders of our means whose rank correlation is at least as high."""
    names = sorted(here.keys() & there.keys())
    values, theirs = [here[name] for name in names], [there[name] for name in names]
    all_orders = spearman(list(permutations(values)), theirs)
    return float((all_orders >= spearman(values, theirs) - 1e-9).mean())


def disagreements(
    by_mixer: dict[str, Scores], there: dict[str, dict[str, float]]
) -> tuple[int, list[tuple[str, str, str, float, Difference]]]:
    """Pairs that a source ranks on our tasks, and those that are significantly otherwise here.

    Returns:
        Their number, and (task, better there, worse there, gap there, difference here).
    """
    number, found = 0, []
    for task in sorted(there.keys() & next(iter(by_mixer.values())).keys()):
        pairs = []
        for a, b in combinations(sorted(by_mixer.keys() & there[task].keys()), 2):
            first, second = (a, b) if there[task][a] >= there[task][b] else (b, a)
            gap = there[task][first] - there[task][second]
            if gap >= TIE:
                pairs.append(
                    (first, second, gap, paired(by_mixer[first][task], by_mixer[second][task]))
                )
        number += len(pairs)
        tested = corrected([difference for *_, difference in pairs])
        for (first, second, gap, _), here in zip(pairs, tested, strict=True):
            if here is not None and here.significant and here.mean < 0:
                found.append((task, first, second, gap, here))
    return number, sorted(found, key=lambda one: one[-1].mean)
