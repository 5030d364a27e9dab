"""The Hydra launcher that every sweep of ours goes through; Hydra finds it by this package's name.

Any sweeper plugin may stand before it: what it asks for is handed on to `chimera.sweep`, which
Hydra passes along as the task function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext
from omegaconf import DictConfig

#: A batch of jobs, each the words of its command line, to what came of them.
RunBatch = Callable[[Sequence[Sequence[str]]], Sequence[JobReturn]]


class OwnProcesses(Launcher):
    """Hands batches of jobs to `chimera.sweep`, where each becomes a process of its own."""

    def setup(self, *, hydra_context: HydraContext, task_function: Any, config: DictConfig) -> None:
        self.run_batch: RunBatch = task_function

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        return self.run_batch(job_overrides)


ConfigStore.instance().store(
    group="hydra/launcher",
    name="chimera",
    node={"_target_": f"{OwnProcesses.__module__}.{OwnProcesses.__name__}"},
)
