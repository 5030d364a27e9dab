"""A search's trials, in Optuna's study on disk: ask for settings, report losses, tell results.

The study is a sqlite file, so it goes on after a kill. The draws of a trial depend on the search's
seed and the trial's number alone, not on when the search was stopped. The space of a search are the
overrides with ranges, in Hydra's syntax:

    optim.lr=interval(1e-4,1e-2)                 any number between
    optim.lr=tag(log,interval(1e-4,1e-2))        the same, even in its logarithm
    model.depth=int(interval(2,8))               any integer, both ends included
    model.dim=range(64,257,64)                   64, 128, 192, 256
    mixer=retnet,attention   mixer=glob(*)       one of these; also choice(…)
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep

from chimera.errors import UserError, library, one_line
from chimera.sweep.compose_jobs import values_of
from chimera.types import NonNegativeInt, PositiveInt

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

    def tell(
        self, trial: Trial, state: Literal["done", "failed", "pruned"], value: float | None = None
    ) -> None:
        """End a trial; one without a finite value has failed."""
        states = self.optuna.trial.TrialState
        if state == "done" and value is not None and math.isfinite(value):
            self._study.tell(trial.number, value, skip_if_finished=True)
        else:
            ended = states.PRUNED if state == "pruned" else states.FAIL
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
