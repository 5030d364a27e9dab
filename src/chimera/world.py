"""Rank of this process and number of processes that train together.

They are read from the process group of torch.distributed if it is initialised, else from the
environment variables that torchrun or Slurm's `srun` sets. Without either there is one process.
Data loaders are built before the Trainer, so they cannot ask the Trainer. Does not import torch.
"""

from __future__ import annotations

import os
import sys
from typing import Any

#: Variables of rank, size, rank on its node and processes of its node: of torchrun and of `srun`.
#: SLURM_NTASKS is not used: Slurm sets it in a batch script too, where only one process runs.
#: SLURM_STEP_NUM_TASKS is set by `srun` alone.
_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
_SRUN = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE")


def rank() -> int:
    """Rank of this process, from 0."""
    return _rank_and_size()[0]


def world_size() -> int:
    """Number of processes."""
    return _rank_and_size()[1]


def is_first() -> bool:
    """Whether this process is the one that writes and speaks for all."""
    return rank() == 0


def launcher() -> str | None:
    """`torchrun` or `srun`, if one of them has started several processes; else None."""
    for name, variables in (("torchrun", _TORCHRUN), ("srun", _SRUN)):
        if variables[0] in os.environ and int(os.environ.get(variables[1], 1)) > 1:
            return name
    return None


def local_rank() -> int:
    """Rank among the processes of this node, from 0."""
    name = launcher()
    return 0 if name is None else int(os.environ[(_TORCHRUN if name == "torchrun" else _SRUN)[2]])


def local_size() -> int:
    """Number of processes of this node."""
    name = launcher()
    if name is None:
        return 1
    value = os.environ[(_TORCHRUN if name == "torchrun" else _SRUN)[3]]
    return int(value.partition("(")[0].partition(",")[0])  # srun writes «4(x2)» for two nodes of 4


def _rank_and_size() -> tuple[int, int]:
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    for variables in (_TORCHRUN, _SRUN):
        if variables[0] in os.environ and variables[1] in os.environ:
            return int(os.environ[variables[0]]), int(os.environ[variables[1]])
    return 0, 1
