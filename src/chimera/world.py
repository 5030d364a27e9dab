"""Rank of this process and number of processes that train together.

They are read from the process group of torch.distributed if it is initialised, else from the
environment variables that torchrun or Slurm's `srun` sets. Without either there is one process.
Data loaders are built before the Trainer, so they cannot ask the Trainer. Does not import torch.
"""

from __future__ import annotations

import os
import sys
from typing import Any

#: Variables of rank and size, of torchrun and of `srun`. SLURM_NTASKS is not used: Slurm sets it in
#: a batch script too, where only one process runs. SLURM_STEP_NUM_TASKS is set by `srun` alone.
_VARIABLES = (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"))


def rank() -> int:
    """Rank of this process, from 0."""
    return _rank_and_size()[0]


def world_size() -> int:
    """Number of processes."""
    return _rank_and_size()[1]


def _rank_and_size() -> tuple[int, int]:
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    for rank_name, size_name in _VARIABLES:
        if rank_name in os.environ and size_name in os.environ:
            return int(os.environ[rank_name]), int(os.environ[size_name])
    return 0, 1
