"""Hydra launcher and default sweeper of Chimera; Hydra finds them by the name of this package.

The launcher works with any sweeper plugin: it calls the task function that Hydra was given, which
is `chimera.sweep`, with the jobs that the sweeper asks for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext
from omegaconf import DictConfig

#: Runs a batch of jobs, each given by its overrides, and returns their results.
RunBatch = Callable[[Sequence[Sequence[str]]], Sequence[JobReturn]]


class OwnProcesses(Launcher):
    """Run batches of jobs through `chimera.sweep`, each job in its own process."""

    def setup(self, *, hydra_context: HydraContext, task_function: Any, config: DictConfig) -> None:
        self.run_batch: RunBatch = task_function

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        return self.run_batch(job_overrides)


class GridSweeper(BasicSweeper):
    """Hydra's sweeper without its own composition of all jobs, which `chimera.sweep` composes."""

    def validate_batch_is_legal(self, batch: Sequence[Sequence[str]]) -> None:
        """Leave it to the launcher, which checks more and says what is wrong in one line."""


ConfigStore.instance().store(
    group="hydra/sweeper",
    name="chimera",
    node={
        "_target_": f"{GridSweeper.__module__}.{GridSweeper.__name__}",
        "max_batch_size": None,
        "params": None,
    },
)
ConfigStore.instance().store(
    group="hydra/launcher",
    name="chimera",
    node={"_target_": f"{OwnProcesses.__module__}.{OwnProcesses.__name__}"},
)
