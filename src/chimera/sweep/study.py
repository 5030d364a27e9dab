"""A search's trials, in Optuna's study on disk: ask for settings, report losses, tell results.

The study is a sqlite file, so it goes on after a kill. The draws of a trial depend on the search's
seed and the trial's number alone, not on when the search was stopped.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from chimera.errors import UserError
from chimera.sweep.space import Dimension
from chimera.types import NonNegativeInt, PositiveInt


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


@dataclass
class Trial:
    """One trial.

    Args:
        number: in the study, from 0.
        overrides: of the searched settings.
    """

    number: int
    overrides: tuple[str, ...]


class Study:
    """The study of one search.

    Args:
        file: sqlite file; made if it is missing.
        dimensions: the space.
        settings: of the search.
    """

    def __init__(self, file: Path, dimensions: Sequence[Dimension], settings: Search) -> None:
        optuna = library()
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.dimensions, self.settings = dimensions, settings
        self._distributions = {d.key: _distribution(d) for d in dimensions}
        file.parent.mkdir(parents=True, exist_ok=True)
        pruner = optuna.pruners.NopPruner()
        if settings.pruner == "asha":
            pruner = optuna.pruners.SuccessiveHalvingPruner(
                min_resource=settings.min_steps, reduction_factor=settings.reduction
            )
        self._study = optuna.create_study(
            storage=f"sqlite:///{file.absolute()}", study_name="search", load_if_exists=True,
            pruner=pruner, direction={"lower": "minimize", "higher": "maximize"}[settings.better],
        )  # fmt: skip
        self._state = optuna.trial.TrialState

    @property
    def count(self) -> int:
        """Number of trials so far."""
        return len(self._study.get_trials(deepcopy=False))

    def unfinished(self) -> list[Trial]:
        """Trials that were begun and have no result: those of a search that was stopped."""
        running = self._study.get_trials(deepcopy=False, states=(self._state.RUNNING,))
        return [
            self._trial(t.number, t.params)
            for t in running
            if len(t.params) == len(self.dimensions)
        ]

    def ask(self) -> Trial:
        """Begin the next trial."""
        optuna, seed = library(), self._seed(self.count)
        if self.settings.sampler == "random":
            self._study.sampler = optuna.samplers.RandomSampler(seed=seed)
        else:
            self._study.sampler = optuna.samplers.TPESampler(
                seed=seed, n_startup_trials=self.settings.startup, constant_liar=True
            )
        asked = self._study.ask(self._distributions)
        return self._trial(asked.number, asked.params)

    def report(self, trial: Trial, values: Sequence[tuple[int, float]]) -> bool:
        """Report the validations of a trial, by step; returns whether it should be pruned."""
        asked = self._optuna_trial(trial)
        known = self._study.get_trials(deepcopy=False)[trial.number].intermediate_values
        for step, value in values:
            if step not in known:
                asked.report(value, step)
                if math.isfinite(value) and asked.should_prune():
                    return True
        return False

    def tell(
        self, trial: Trial, state: Literal["done", "failed", "pruned"], value: float | None = None
    ) -> None:
        """End a trial."""
        states = {"failed": self._state.FAIL, "pruned": self._state.PRUNED}
        if state == "done" and value is not None and math.isfinite(value):
            self._study.tell(trial.number, value, skip_if_finished=True)
        else:
            self._study.tell(
                trial.number, state=states.get(state, self._state.FAIL), skip_if_finished=True
            )

    def trials(self) -> list[tuple[Trial, str, float | None]]:
        """All trials with their state, and the value of the complete ones."""
        return [
            (
                self._trial(t.number, t.params),
                t.state.name.lower(),
                t.value if t.state is self._state.COMPLETE else None,
            )
            for t in self._study.get_trials(deepcopy=False)
        ]

    def _trial(self, number: int, params: Mapping[str, Any]) -> Trial:
        return Trial(
            number, tuple(d.override(params[d.key]) for d in self.dimensions if d.key in params)
        )

    def _optuna_trial(self, trial: Trial) -> Any:
        frozen = self._study.get_trials(deepcopy=False)[trial.number]
        return library().trial.Trial(self._study, frozen._trial_id)

    def _seed(self, number: int) -> int:
        digest = hashlib.sha256(f"{self.settings.seed} {number}".encode()).digest()
        return int.from_bytes(digest[:4], "big")


def library() -> ModuleType:
    """Optuna.

    Raises:
        UserError: it is not installed.
    """
    try:
        import optuna
    except ModuleNotFoundError as error:
        raise UserError(
            "search.* needs the optuna library; install it: pip install 'chimera-lm[search]'"
        ) from error
    assert isinstance(optuna, ModuleType)
    return optuna


def _distribution(dimension: Dimension) -> Any:
    kinds = library().distributions
    if dimension.names:
        return kinds.CategoricalDistribution(dimension.names)
    low, high, step = dimension.low, dimension.high, dimension.step
    if isinstance(low, int) and isinstance(high, int):
        step = None if dimension.log else step
        return kinds.IntDistribution(low, high, log=dimension.log, step=int(step or 1))
    return kinds.FloatDistribution(low, high, log=dimension.log, step=step)
