"""Train a profile's tasks for more steps: whether a low score is the mixer's or the budget's.

    python -m benchmarks longer mixer=attention,gated_delta tasks=fuzzy_recall steps=3200

The rate is the one that the profile of 800 steps chose (profile.py), at which its four reporting
seeds train again, with the same schedule stretched. Records go into the run store under the names
`longer-<task>-<mixer>`; those that it has are not trained again. `python -m benchmarks cards`
writes them into docs/choose.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks import profile, variant
from chimera.config.arguments import read
from chimera.errors import UserError, unknown
from chimera.types import PositiveInt

USAGE = "python -m benchmarks longer mixer=<name>[,…] tasks=<task>[,…] [steps=3200]"
#: First part of the names of records.
NAME = "longer"


@dataclass(frozen=True)
class Options:
    """What to train for longer.

    Args:
        mixer: names of mixers whose profile is in the run store, each with options if wanted.
        tasks: names of tasks.
        steps: of a run, more than the profile's.
    """

    mixer: list[str]
    tasks: list[str]
    steps: PositiveInt = 4 * profile.STEPS


def main(words: Sequence[str] = ()) -> dict[str, Any]:
    """Train what is missing; no results file is written.

    Raises:
        UserError: an unknown mixer, task or word, fewer steps than the profile has, or no profile.
    """
    if not words:
        print(f"longer needs a mixer and a task: {USAGE}")
        return {}
    options = read(Options, words, USAGE)
    if options.steps <= profile.STEPS:
        raise UserError(f"steps={options.steps} are not more than the profile's {profile.STEPS}")
    mixers = [variant.checked(mixer) for mixer in options.mixer]
    for task in options.tasks:
        if task not in profile.TASKS:
            raise unknown("tasks", task, profile.TASKS)
    rates = {(m, t): _rate(m, t) for m in mixers for t in options.tasks}
    for (mixer, task), rate in rates.items():
        for seed in profile.SEEDS:
            profile.run(overrides(mixer, task, rate, seed, options.steps))
    return {}


def overrides(mixer: str, task: str, rate: float, seed: int, steps: int) -> list[str]:
    """Words of the command line of one run: those of the profile, with its own steps and name."""
    words = profile.overrides(
        mixer, task, rate, seed, name=f"{NAME}-{task}-{variant.in_name(mixer)}"
    )
    usual = f"trainer.max_steps={profile.STEPS}"
    return [f"trainer.max_steps={steps}" if word == usual else word for word in words]


def _rate(mixer: str, task: str) -> float:
    """The rate of the profile in the run store.

    Raises:
        UserError: the store lacks runs that choose it.
    """
    runs = [profile.stored(mixer, task, rate, profile.CHOICE) for rate in profile.RATES]
    best = profile.chosen(record for record in runs if record is not None)
    if best is not None:
        rate = profile.rate_of(best)
        if profile.stored(mixer, task, rate, profile.SEEDS[0]) is not None:
            return rate
    raise UserError(
        f"the run store lacks the profile of {mixer} on {task}, which chooses the rate:"
        f" python -m benchmarks profile mixer={mixer} tasks={task}"
    )
